#include "export_plugin/rules/topology.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"

namespace lockstep::rules {
namespace {

using Layers = std::vector<uint32_t>;

std::vector<std::vector<Layers>> LayersOf(const Topology& topology, uint64_t layers, uint64_t mtp_layers = 0) {
  std::vector<std::vector<Layers>> stages;
  for (uint32_t stage = 0; stage < topology.pipeline; ++stage) {
    const auto chunks = ChunksOfStage(topology, layers, mtp_layers, stage);
    INFO(chunks.status().ToString());
    REQUIRE(chunks.ok());
    stages.emplace_back();
    for (const ModelChunk& chunk : *chunks) stages.back().push_back(chunk.layers);
  }
  return stages;
}

Topology Layout(uint32_t pipeline, std::string layout, uint32_t virtual_pipeline = 1) {
  return {.world = pipeline,
          .pipeline = pipeline,
          .virtual_pipeline = virtual_pipeline,
          .pipeline_layout = std::move(layout)};
}

// First global layer of a chunk by Megatron's closed formulas, which the code does not use.
uint64_t FirstLayer(const Topology& t, uint64_t layers, uint32_t pp, uint32_t vp) {
  const uint64_t P = t.pipeline, V = t.virtual_pipeline, a = t.first_stage_layers, b = t.last_stage_layers;
  if (a + b > 0) {
    const uint64_t mid = layers - a - b, M = P - (a > 0) - (b > 0), m = a > 0 ? pp - 1 : pp;
    const uint64_t base = vp * ((a + mid + b) / V);
    return pp == 0 ? base : base + a / V + (M == 0 ? 0 : m * (mid / V / M));
  }
  const uint64_t places = layers + t.embedding_in_split + t.loss_in_split;
  const uint64_t offset = vp * (places / V) + pp * (places / V / P);
  return offset - (t.embedding_in_split && pp + vp > 0 ? 1 : 0);
}

TEST_CASE("Layers are divided evenly, virtual stages in turn") {
  CHECK(LayersOf({.world = 2, .pipeline = 2}, 4) == std::vector<std::vector<Layers>>{{{0, 1}}, {{2, 3}}});
  CHECK(LayersOf({.world = 2, .pipeline = 2, .virtual_pipeline = 2}, 8) ==
        std::vector<std::vector<Layers>>{{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}});
}

TEST_CASE("Chunks begin where Megatron's formulas say") {
  const std::vector<std::pair<Topology, uint64_t>> cases = {
      {{.pipeline = 4}, 8},
      {{.pipeline = 4, .virtual_pipeline = 2}, 16},
      {{.pipeline = 4, .first_stage_layers = 1}, 7},
      {{.pipeline = 4, .last_stage_layers = 1}, 7},
      {{.pipeline = 4, .virtual_pipeline = 2, .first_stage_layers = 4, .last_stage_layers = 2}, 14},
      {{.pipeline = 2, .virtual_pipeline = 2, .first_stage_layers = 2}, 6},
      {{.pipeline = 3, .virtual_pipeline = 2, .last_stage_layers = 2}, 10},
      {{.pipeline = 4, .embedding_in_split = true}, 7},
      {{.pipeline = 4, .loss_in_split = true}, 7},
      {{.pipeline = 2, .virtual_pipeline = 3, .embedding_in_split = true, .loss_in_split = true}, 10},
  };
  for (auto [topology, layers] : cases) {
    topology.world = topology.pipeline;
    REQUIRE(CheckTopology(topology, layers).ok());
    const auto stages = LayersOf(topology, layers);
    for (uint32_t pp = 0; pp < topology.pipeline; ++pp) {
      for (uint32_t vp = 0; vp < topology.virtual_pipeline; ++vp) {
        INFO("layers " << layers << " stage " << pp << " virtual " << vp);
        if (!stages[pp][vp].empty()) CHECK(stages[pp][vp].front() == FirstLayer(topology, layers, pp, vp));
      }
    }
  }
}

TEST_CASE("A pipeline layout is a string of stages with repetitions") {
  CHECK(LayersOf(Layout(2, "Et|tttL"), 4) == std::vector<std::vector<Layers>>{{{0}}, {{1, 2, 3}}});
  CHECK(LayersOf(Layout(2, "E|t|tt|tL"), 4) == std::vector<std::vector<Layers>>{{{}, {1, 2}}, {{0}, {3}}});
  CHECK(LayersOf(Layout(2, "E|t|tt|tL", 2), 4).front().size() == 2);
  // The example of Megatron's own documentation, smaller: 16 stages of 8 ranks.
  const auto stages = LayersOf(Layout(8, "Ettt|(tt|)*13,m|L"), 29, 1);
  CHECK(stages[0] == std::vector<Layers>{{0, 1, 2}, {17, 18}});
  CHECK(stages[6] == std::vector<Layers>{{13, 14}, {}});
  CHECK(stages[7] == std::vector<Layers>{{15, 16}, {}});
  CHECK(LayersOf(Layout(3, "Et*2|(t)*2|t*10L"), 14)[2] == std::vector<Layers>{{4, 5, 6, 7, 8, 9, 10, 11, 12, 13}});
  CHECK(LayersOf(Layout(4, "Et(|t)*3L"), 4).size() == 4);
}

TEST_CASE("Chunks know what else they build") {
  auto first = *ChunksOfStage({.world = 2, .pipeline = 2, .virtual_pipeline = 2}, 4, 1, 0);
  CHECK((first[0].embedding && !first[1].embedding && !first[0].output && !first[1].output && !first[1].mtp));
  auto last = *ChunksOfStage({.world = 2, .pipeline = 2, .virtual_pipeline = 2}, 4, 1, 1);
  CHECK((!last[0].output && last[1].output && last[1].mtp && last[1].final_norm && !last[0].final_norm));
  CHECK_FALSE((*ChunksOfStage({.world = 1}, 4, 0, 0))[0].mtp);
}

TEST_CASE("With MTP layers the final norm is next to the last decoder layer") {
  const Topology apart = Layout(4, "Ett|tt|m|L");
  const auto chunk = [&](uint32_t stage, uint64_t mtp_layers) {
    return (*ChunksOfStage(apart, 4, mtp_layers, stage))[0];
  };
  CHECK((chunk(1, 1).final_norm && !chunk(1, 1).mtp));
  CHECK((!chunk(2, 1).final_norm && chunk(2, 1).mtp && !chunk(2, 1).embedding));
  CHECK((!chunk(3, 1).final_norm && chunk(3, 1).output));
  CHECK((*ChunksOfStage(Layout(2, "Ett|L"), 2, 0, 1))[0].final_norm);
}

TEST_CASE("What is no layout of the model is refused") {
  const auto refusal = [](uint32_t pipeline, const std::string& layout, uint64_t layers = 4, uint64_t mtp = 0) {
    return ChunksOfStage(Layout(pipeline, layout), layers, mtp, 0);
  };
  CHECK_THAT(refusal(2, "Ett|xttL"), FailsWith(ErrorCode::kBadData, "stray 'x'"));
  CHECK_THAT(refusal(2, "Ett tt|L"), FailsWith(ErrorCode::kBadData, "stray ' '"));
  CHECK_THAT(refusal(2, "E(tt|ttL"), FailsWith(ErrorCode::kBadData, "stray '('"));
  CHECK_THAT(refusal(2, "Et*|tttL"), FailsWith(ErrorCode::kBadData, "stray '*'"));
  CHECK_THAT(refusal(2, "tt|ttL"), FailsWith(ErrorCode::kBadData, "must start with the only E"));
  CHECK_THAT(refusal(2, "|EttttL"), FailsWith(ErrorCode::kBadData, "must start with the only E"));
  CHECK_THAT(refusal(2, "Ett|EttL"), FailsWith(ErrorCode::kBadData, "must start with the only E"));
  CHECK_THAT(refusal(2, "Ett|ttLt"), FailsWith(ErrorCode::kBadData, "must end with the only L"));
  CHECK_THAT(refusal(2, "EttttL|"), FailsWith(ErrorCode::kBadData, "must end with the only L"));
  CHECK_THAT(refusal(2, "Ett|t|tL"), FailsWith(ErrorCode::kBadData, "3 stages are no multiple of 2"));
  CHECK_THAT(refusal(1, "Ett|ttL"), FailsWith(ErrorCode::kBadData, "one pipeline rank has one stage"));
  CHECK_THAT(refusal(2, "Ett|tL"), FailsWith(ErrorCode::kBadData, "3 decoder layers, the model 4"));
  CHECK_THAT(refusal(2, "Ett|ttmL"), FailsWith(ErrorCode::kBadData, "1 MTP layers, the model 0"));
  CHECK_THAT(refusal(2, "Ett|mttL", 4, 1), FailsWith(ErrorCode::kBadData, "a decoder layer comes after an MTP layer"));
  CHECK_THAT(refusal(3, "Ett|ttm|mL", 4, 2), FailsWith(ErrorCode::kBadData, "MTP layers must be in one stage"));
  CHECK_THAT(refusal(2, "Ett|ttm||L", 4, 1), FailsWith(ErrorCode::kBadData, "last virtual stage"));
  CHECK_THAT(refusal(2, "Ett|tt|m|L", 4, 1), FailsWith(ErrorCode::kBadData, "need it twice"));
  CHECK_THAT(refusal(2, "E(t)*99999999999999999999|L"), FailsWith(ErrorCode::kBadData, "repeats too much"));
  CHECK_THAT(refusal(2, "E(tttttttttt)*99999,(tttttttttt)*99999|L"),
             FailsWith(ErrorCode::kBadData, "repeats too much"));
  Topology both = Layout(2, "Ett|ttL");
  both.first_stage_layers = 1;
  CHECK_THAT(CheckTopology(both, 4), FailsWith(ErrorCode::kBadData, "leaves no room"));
  CHECK_THAT(CheckTopology(Layout(2, "Ett|ttL", 3), 4), FailsWith(ErrorCode::kBadData, "2 stages, not 2 * 3"));
}

TEST_CASE("Sizes that do not divide are refused by name") {
  CHECK_THAT(CheckTopology({.world = 6, .tensor = 4}, 4),
             FailsWith(ErrorCode::kBadData, "tensor * context * pipeline"));
  CHECK_THAT(CheckTopology({.world = 4, .tensor = 4, .expert = 3}, 4),
             FailsWith(ErrorCode::kBadData, "expert tensor * expert * pipeline"));
  CHECK_THAT(CheckTopology({.world = 3, .pipeline = 2}, 4), FailsWith(ErrorCode::kBadData, "no multiple"));
  CHECK_THAT(CheckTopology({.world = 4, .tensor = 0}, 4), FailsWith(ErrorCode::kBadData, "tensor parallelism is 0"));
  CHECK_THAT(CheckTopology({.world = kMaxWorld + 1}, 4), FailsWith(ErrorCode::kBadData, "world is 1048577"));
  CHECK_THAT(CheckTopology({.world = 2, .pipeline = 2}, 5),
             FailsWith(ErrorCode::kBadData, "5 layers less 0 in the first and 0"));
  CHECK_THAT(CheckTopology({.world = 4, .pipeline = 4, .first_stage_layers = 3}, 7),
             FailsWith(ErrorCode::kBadData, "do not divide into 3"));
  CHECK_THAT(CheckTopology({.world = 4, .pipeline = 4, .first_stage_layers = 8}, 7),
             FailsWith(ErrorCode::kBadData, "do not divide"));
  CHECK_THAT(CheckTopology({.world = 2, .pipeline = 2, .first_stage_layers = 4}, 4),
             FailsWith(ErrorCode::kBadData, "do not divide into 1"));
  CHECK_THAT(CheckTopology({.world = 2, .pipeline = 2, .virtual_pipeline = 2}, 6),
             FailsWith(ErrorCode::kBadData, "do not divide into 2 virtual"));
  CHECK_THAT(CheckTopology({.world = 1, .virtual_pipeline = 2}, 4),
             FailsWith(ErrorCode::kBadData, "more than one pipeline rank"));
  CHECK_THAT(CheckTopology({.world = 2, .pipeline = 2, .virtual_pipeline = kMaxWorld}, 4),
             FailsWith(ErrorCode::kBadData, "virtual stages"));
  CHECK_THAT(CheckTopology({.world = 1, .first_stage_layers = 2}, 4),
             FailsWith(ErrorCode::kBadData, "one pipeline stage"));
  Topology mixed{.world = 2, .pipeline = 2, .first_stage_layers = 2};
  mixed.loss_in_split = true;
  CHECK_THAT(CheckTopology(mixed, 5), FailsWith(ErrorCode::kBadData, "together with"));
}

// The groups Megatron's parallel_state makes of 8 ranks: the ranks of a group differ in one coordinate only.
void CheckGroups(const Topology& topology, GroupPlace RankCoordinates::*group_place,
                 const std::vector<std::vector<uint32_t>>& groups) {
  for (const std::vector<uint32_t>& group : groups) {
    for (uint32_t i = 0; i < group.size(); ++i) CHECK((PlaceOf(topology, group[i]).*group_place).at == i);
  }
}

TEST_CASE("Ranks stand where Megatron's default order puts them") {
  const Topology dense{.world = 8, .tensor = 2, .pipeline = 2, .expert = 2, .expert_tensor = 2};
  CheckGroups(dense, &RankCoordinates::tensor, {{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CheckGroups(dense, &RankCoordinates::expert, {{0, 2}, {1, 3}, {4, 6}, {5, 7}});
  CheckGroups(dense, &RankCoordinates::expert_tensor, {{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  for (uint32_t rank = 0; rank < 8; ++rank) CHECK(PlaceOf(dense, rank).pipeline == rank / 4);
  const Topology apart{.world = 8, .tensor = 2, .context = 2, .pipeline = 2, .expert = 4, .expert_tensor = 1};
  CheckGroups(apart, &RankCoordinates::tensor, {{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CheckGroups(apart, &RankCoordinates::expert, {{0, 1, 2, 3}, {4, 5, 6, 7}});
  const Topology wide{.world = 8, .tensor = 1, .expert = 4, .expert_tensor = 2};
  CheckGroups(wide, &RankCoordinates::expert, {{0, 2, 4, 6}, {1, 3, 5, 7}});
  CheckGroups(wide, &RankCoordinates::expert_tensor, {{0, 1}, {2, 3}, {4, 5}, {6, 7}});
}

}  // namespace
}  // namespace lockstep::rules

#include "common/layout/copy_plan.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/layout/layout_testing.h"

namespace lockstep::layout {
namespace {

// A model in a few words: tensors and sources of the same name, unless said otherwise.
struct Model : TrainingModel {
  uint32_t Tensor(const std::string& name, Extents shape, model::DType dtype = model::DType::kBF16) {
    tensors.push_back({.name = name, .dtype = dtype, .shape = std::move(shape)});
    groups.push_back(0);
    return static_cast<uint32_t>(tensors.size() - 1);
  }
  uint32_t Source(const std::string& name, Extents shape) {
    sources.push_back({.name = name, .shape = std::move(shape)});
    return static_cast<uint32_t>(sources.size() - 1);
  }
  uint32_t Same(const std::string& name, const Extents& shape) {
    const uint32_t tensor = Tensor(name, shape);
    const uint32_t source = Source(name, shape);
    conversions.push_back({source, tensor, Whole(shape)});
    return source;
  }
  Holding& Hold(uint32_t rank, uint32_t source, Pieces pieces) {
    const Extents local = pieces.empty() ? Extents(sources[source].shape.size()) : pieces[0].size;
    holdings.push_back({rank, source, local, std::move(pieces), false});
    return holdings.back();
  }
  void HoldShard(uint32_t rank, uint32_t source, size_t dim, uint64_t index, uint64_t count) {
    Hold(rank, source, ShardOf(sources[source].shape, dim, index, count));
  }
  void HoldWhole(uint32_t rank, uint32_t source) { Hold(rank, source, Whole(sources[source].shape)); }
};

CopyPlan Export(const TrainingModel& model, const std::vector<bool>& beside) {
  auto plan = CompileExport(model, beside);
  REQUIRE(plan.status().message().empty());
  return *std::move(plan);
}

std::vector<uint32_t> TensorsOf(const RankPlan& plan) {
  std::vector<uint32_t> tensors;
  for (const PlanEntry& entry : plan.entries) tensors.push_back(entry.tensor);
  return tensors;
}

TEST_CASE("Each of two tensor-parallel ranks writes its own columns") {
  Model model;
  const uint32_t source = model.Same("w", {4, 8});
  model.HoldShard(0, source, 1, 0, 2);
  model.HoldShard(1, source, 1, 1, 2);
  const CopyPlan plan = Export(model, {true, true});
  REQUIRE(plan.ranks.size() == 2);
  REQUIRE(plan.ranks[1].entries.size() == 1);
  CHECK(plan.ranks[1].entries[0].source == source);
  CHECK(plan.ranks[1].entries[0].pieces == Pieces{{{0, 0}, {0, 4}, {4, 4}}});
  CHECK(plan.ranks[1].bytes == 32);
  CHECK(plan.bytes == 64);
}

TEST_CASE("Gate and up, fused on every rank, come apart into two tensors") {
  Model model;
  const uint32_t gate = model.Tensor("gate", {4, 8});
  const uint32_t up = model.Tensor("up", {4, 8});
  const uint32_t fused = model.Source("fc1", {8, 8});
  model.conversions = {{fused, gate, Box({0, 0}, {0, 0}, {4, 8})}, {fused, up, Box({4, 0}, {0, 0}, {4, 8})}};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    model.Hold(rank, fused, {{{0, 0}, {2 * rank, 0}, {2, 8}}, {{2, 0}, {4 + 2 * rank, 0}, {2, 8}}});
    model.holdings.back().local_shape = {4, 8};
  }
  const CopyPlan plan = Export(model, {true, true});
  REQUIRE(TensorsOf(plan.ranks[1]) == std::vector<uint32_t>{gate, up});
  CHECK(plan.ranks[1].entries[0].pieces == Pieces{{{0, 0}, {2, 0}, {2, 8}}});
  CHECK(plan.ranks[1].entries[1].pieces == Pieces{{{2, 0}, {2, 0}, {2, 8}}});
}

TEST_CASE("Experts stacked in one training tensor become tensors of one dimension less") {
  Model model;
  const uint32_t stacked = model.Source("experts", {2, 4, 8});
  for (uint64_t expert = 0; expert < 2; ++expert) {
    const uint32_t tensor = model.Tensor("expert" + std::to_string(expert), {4, 8});
    model.conversions.push_back({stacked, tensor, Box({expert, 0, 0}, {0, 0, 0}, {1, 4, 8})});
  }
  model.HoldShard(0, stacked, 2, 0, 2);
  model.HoldShard(1, stacked, 2, 1, 2);
  const CopyPlan plan = Export(model, {true, true});
  CHECK(plan.ranks[1].entries[1].pieces == Pieces{{{1, 0, 0}, {0, 0, 4}, {1, 4, 4}}});
  CHECK(Promoted({4, 8}, 3) == Extents{1, 4, 8});
  CHECK(Promoted({4, 8}, 1) == Extents{4, 8});
}

TEST_CASE("A replica on the agent's host is preferred to one that is not, whatever it has already") {
  Model model;
  for (const char* name : {"a", "b", "c"}) {
    const uint32_t source = model.Same(name, {16});
    for (uint32_t rank = 0; rank < 3; ++rank) model.HoldWhole(rank, source);
  }
  const CopyPlan plan = Export(model, {false, true, false});
  CHECK(TensorsOf(plan.ranks[1]) == std::vector<uint32_t>{0, 1, 2});
  CHECK(plan.ranks[0].bytes == 0);
}

TEST_CASE("Replicas share the work by bytes, the lowest rank first") {
  Model model;
  for (const auto& [name, size] :
       std::vector<std::pair<const char*, uint64_t>>{{"a", 8}, {"b", 4}, {"c", 4}, {"d", 2}}) {
    const uint32_t source = model.Same(name, {size});
    for (const uint32_t rank : {1, 0}) model.HoldWhole(rank, source);
  }
  const CopyPlan plan = Export(model, {true, true});
  CHECK(TensorsOf(plan.ranks[0]) == std::vector<uint32_t>{0, 3});
  CHECK(TensorsOf(plan.ranks[1]) == std::vector<uint32_t>{1, 2});
}

TEST_CASE("Copies are never exported, but are imported into") {
  Model model;
  const uint32_t source = model.Same("embed", {8, 4});
  model.HoldWhole(0, source);
  model.Hold(1, source, Whole({8, 4})).copy = true;
  const CopyPlan plan = Export(model, {false, true});
  CHECK(plan.ranks[0].bytes == 64);
  CHECK(plan.ranks[1].entries.empty());
  const auto import = CompileImport(model, 1);
  REQUIRE(import.ok());
  CHECK(import->bytes == 64);
  CHECK(import->entries[0].pieces == Whole({8, 4}));
  model.holdings[0].copy = true;
  CHECK_THAT(CompileExport(model, {true, true}), FailsWith(ErrorCode::kBadData, "no rank holds 32 elements of 32"));
}

TEST_CASE("A rank reads all that it holds, replicas too, and an equal copy only once") {
  Model model;
  const uint32_t source = model.Same("w", {8});
  model.Same("x", {8});
  model.HoldShard(0, source, 0, 0, 2);
  model.HoldShard(1, source, 0, 0, 2);
  model.Hold(1, source, ShardOf({8}, 0, 0, 2)).copy = true;
  const auto import = CompileImport(model, 1);
  REQUIRE(import.ok());
  REQUIRE(import->entries.size() == 1);
  CHECK(import->bytes == 8);
  CHECK(CompileImport(model, 7)->entries.empty());
}

TEST_CASE("Shards that overlap without being the same are refused, naming tensor, ranks and elements") {
  Model model;
  const uint32_t source = model.Same("x", {8, 16});
  model.Hold(3, source, Whole({8, 16}));
  model.Hold(5, source, Box({0, 0}, {0, 8}, {4, 8}));
  CHECK_THAT(CompileExport(model, std::vector<bool>(6, true)),
             FailsWith(ErrorCode::kBadData,
                       "tensor \"x\" (BF16 [8, 16]): ranks 3 and 5 both write [0:4, 8:16]: their shards of \"x\" "
                       "overlap without being the same"));
}

TEST_CASE("Two training tensors that make the same elements are refused, naming both") {
  Model model;
  model.HoldWhole(0, model.Same("x", {4}));
  const uint32_t other = model.Source("y", {2});
  model.conversions.push_back({other, 0, Box({0}, {1}, {2})});
  model.HoldWhole(0, other);
  CHECK_THAT(CompileExport(model, {true}),
             FailsWith(ErrorCode::kBadData, "rank 0 writes [1:3] twice: from \"x\" and \"y\""));
}

TEST_CASE("What no rank holds is named with its size and place") {
  Model model;
  const uint32_t source = model.Same("x", {8, 16});
  model.HoldShard(0, source, 0, 0, 2);
  model.Hold(1, source, {});
  CHECK_THAT(CompileExport(model, {true, true}),
             FailsWith(ErrorCode::kBadData,
                       "tensor \"x\" (BF16 [8, 16]): no rank holds 64 elements of 128, the first at [4, 0]"));
}

TEST_CASE("A tensor without elements needs no rank") {
  Model model;
  model.HoldWhole(0, model.Same("x", {4}));
  model.Same("empty", {0, 4});
  CHECK(Export(model, {true}).bytes == 8);
}

TEST_CASE("A plan needs a tensor, a rank on the agent's host, and ranks that exist") {
  CHECK_THAT(CompileExport(TrainingModel(), {true}), FailsWith(ErrorCode::kBadData, "no HuggingFace tensor"));
  Model model;
  model.HoldWhole(1, model.Same("x", {4}));
  CHECK_THAT(CompileExport(model, {false, false}),
             FailsWith(ErrorCode::kBadData, "none of 2 ranks is on the agent's host"));
  CHECK_THAT(CompileExport(model, {}), FailsWith(ErrorCode::kBadData, "none of 0 ranks is on the agent's host"));
  CHECK_THAT(CompileExport(model, {true}),
             FailsWith(ErrorCode::kBadData, "training tensor \"x\" is held by rank 1 of 1"));
}

TEST_CASE("A rank that holds a training tensor twice must hold the same") {
  Model model;
  const uint32_t source = model.Same("x", {8});
  model.HoldShard(0, source, 0, 0, 2);
  model.HoldShard(0, source, 0, 1, 2);
  CHECK_THAT(CompileExport(model, {true}), FailsWith(ErrorCode::kBadData, "rank 0 holds training tensor \"x\" twice"));
  CHECK_THAT(CompileImport(model, 0), FailsWith(ErrorCode::kBadData, "rank 0 holds training tensor \"x\" twice"));
}

struct Damage {
  const char* name;
  void (*apply)(Model&);
  const char* message;
};

TEST_CASE("A training model that contradicts itself is refused, naming the tensor") {
  const uint64_t huge = uint64_t{1} << 40;
  static const uint64_t kHuge = huge;
  const auto damage = GENERATE(
      Damage{"holding of an unknown source", [](Model& m) { m.holdings[0].source = 9; },
             "rank 0 holds training tensor 9"},
      Damage{"holding out of bounds", [](Model& m) { m.holdings[0].pieces[0].target[0] = 1; },
             "training tensor \"x\" on rank 0: piece 0: its target box [1:9, 0:4]"},
      Damage{"holding larger than its memory",
             [](Model& m) {
               m.holdings[0].local_shape = {7, 4};
             },
             "training tensor \"x\" on rank 0: piece 0: its source box [0:8, 0:4]"},
      Damage{"holding of other rank", [](Model& m) { m.holdings[0].local_shape = {32}; },
             "training tensor \"x\" on rank 0: piece 0: its source box has 2 dimensions"},
      Damage{"holding that reads an element twice",
             [](Model& m) {
               m.holdings[0].pieces = {{{0, 0}, {0, 0}, {5, 4}}, {{4, 0}, {5, 0}, {3, 4}}};
             },
             "training tensor \"x\" on rank 0: pieces 0 and 1 overlap on the source side in [4:5, 0:4]"},
      Damage{"huge local tensor",
             [](Model& m) {
               m.holdings[0].local_shape = {kHuge, kHuge};
             },
             "on rank 0: its shape"},
      Damage{"conversion of an unknown source", [](Model& m) { m.conversions[0].source = 2; },
             "a conversion names training tensor 2 of 1"},
      Damage{"conversion to an unknown tensor", [](Model& m) { m.conversions[0].tensor = 1; },
             "HuggingFace tensor 1 of 1"},
      Damage{"conversion out of bounds", [](Model& m) { m.conversions[0].pieces[0].size[1] = 5; },
             "tensor \"x\" from training tensor \"x\": piece 0: its source box [0:8, 0:5]"},
      Damage{"conversion of fewer dimensions", [](Model& m) { m.sources[0].shape = {32}; },
             "tensor \"x\" from training tensor \"x\": piece 0"},
      Damage{"source given twice", [](Model& m) { m.Source("x", {1}); },
             "training tensor \"x\": the name is given twice"},
      Damage{"huge source",
             [](Model& m) {
               m.sources[0].shape = {kHuge, kHuge};
             },
             "training tensor \"x\": its shape"},
      Damage{"too many dimensions", [](Model& m) { m.sources[0].shape = Extents(17, 1); }, "it has 17 dimensions"},
      Damage{"tensor too large",
             [](Model& m) {
               m.tensors[0].shape = {kHuge, kHuge};
             },
             "tensor \"x\": its shape"},
      Damage{"packed elements", [](Model& m) { m.tensors[0].dtype = model::DType::kF4; }, "elements of F4 share bytes"},
      Damage{"no group", [](Model& m) { m.groups.clear(); }, "1 HuggingFace tensors have 0 groups"});
  Model model;
  model.HoldWhole(0, model.Same("x", {8, 4}));
  REQUIRE(CompileExport(model, {true}).ok());
  damage.apply(model);
  INFO(damage.name);
  CHECK_THAT(CompileExport(model, {true}), FailsWith(ErrorCode::kBadData, damage.message));
  CHECK_THAT(CompileImport(model, 0), FailsWith(ErrorCode::kBadData, damage.message));
}

TEST_CASE("Whatever changes what ranks exchange changes the plan's digest") {
  const auto digest = [](void (*change)(Model&), const std::vector<bool>& beside) {
    Model model;
    const uint32_t source = model.Same("x", {8, 4});
    model.Same("y", {8});
    model.HoldShard(0, source, 0, 0, 2);
    model.HoldShard(1, source, 0, 1, 2);
    model.HoldWhole(1, 1);
    change(model);
    return Export(model, beside).digest;
  };
  const PlanDigest plain = digest([](Model&) {}, {true, true});
  CHECK(plain == digest([](Model& m) { std::swap(m.holdings[0], m.holdings[2]); }, {true, true}));
  CHECK(plain != digest([](Model&) {}, {true, false}));
  CHECK(plain != digest([](Model& m) { m.groups[1] = 1; }, {true, true}));
  CHECK(plain != digest([](Model& m) { m.sources[0].frozen = true; }, {true, true}));
  CHECK(plain != digest([](Model& m) { m.sources[0].name = "z"; }, {true, true}));
  CHECK(plain != digest([](Model& m) { m.tensors[1].name = "z"; }, {true, true}));
  CHECK(plain != digest([](Model& m) { m.tensors[1].dtype = model::DType::kF32; }, {true, true}));
  CHECK(plain != digest([](Model& m) { std::swap(m.holdings[0].rank, m.holdings[1].rank); }, {true, true}));
  CHECK(plain != digest(
                     [](Model& m) {
                       m.holdings[0].local_shape = {5, 4};
                       m.holdings[0].pieces[0].source = {1, 0};
                     },
                     {true, true}));
}

}  // namespace
}  // namespace lockstep::layout

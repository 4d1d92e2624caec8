#include <catch2/catch.hpp>
#include <string>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "raas_receiver/placement/rules/rules.h"
#include "raas_receiver/placement/rules/rules_testing.h"
#include "raas_receiver/placement/rules/test_layouts.h"

namespace lockstep::placement {
namespace {

std::shared_ptr<const model::ModelLayout> Layout(const ModelShape& model) {
  const auto layout = LayoutOf(model);
  REQUIRE(layout.ok());
  return *layout;
}

EnginePlace Place(const std::string& engine, const std::string& family, uint32_t tp = 1, uint32_t rank = 0) {
  EnginePlace place{.engine = engine, .family = family, .tensor = {tp, rank}};
  place.expert_tensor = place.tensor;
  place.key_value_heads = ModelShape{}.key_value_heads;
  return place;
}

// A rank as an engine describes it: names, types and shapes.
RankDescription Rank(const model::ModelLayout& layout, const EnginePlace& place) {
  Result<ExpandedRules> rules = ExpandRules(layout, place);
  REQUIRE(rules.ok());
  RankDescription rank{.place = place};
  rank.parameters = std::move(rules->parameters);
  for (EngineParameter& parameter : rank.parameters) {
    parameter.slices.clear();
    parameter.padding.clear();
  }
  return rank;
}

EngineParameter& Named(RankDescription& rank, const std::string& name) {
  for (EngineParameter& parameter : rank.parameters) {
    if (parameter.name == name) return parameter;
  }
  FAIL("no parameter " << name);
  return rank.parameters.front();
}

Status Refusal(const model::ModelLayout& layout, RankDescription rank) {
  return CompleteDescription(layout, rank).status();
}

std::vector<std::string> Completed(const model::ModelLayout& layout, RankDescription& rank) {
  Result<std::vector<std::string>> unused = CompleteDescription(layout, rank);
  INFO(unused.status().ToString());
  REQUIRE(unused.ok());
  return *std::move(unused);
}

TEST_CASE("A described rank gets the slices of its rules, in its own order and memory") {
  const auto layout = Layout(TinyModel("deepseek_v3"));
  const EnginePlace place = Place("sglang", "deepseek_v3", 2, 1);
  const Result<ExpandedRules> rules = ExpandRules(*layout, place);
  RankDescription rank = Rank(*layout, place);
  std::reverse(rank.parameters.begin(), rank.parameters.end());
  for (EngineParameter& parameter : rank.parameters) parameter.memory = 3;
  CHECK(Completed(*layout, rank) == rules->unused);
  REQUIRE(rank.parameters.size() == rules->parameters.size());
  for (size_t k = 0; k < rank.parameters.size(); ++k) {
    const EngineParameter& expected = rules->parameters[rank.parameters.size() - 1 - k];
    REQUIRE(rank.parameters[k].name == expected.name);
    REQUIRE(rank.parameters[k].slices == expected.slices);
    REQUIRE(rank.parameters[k].padding == expected.padding);
    REQUIRE(rank.parameters[k].offset == expected.offset);
    REQUIRE(rank.parameters[k].memory == 3);
  }
}

TEST_CASE("Names of older vLLM releases are known too, but not both at once") {
  const auto layout = Layout(TinyModel("mixtral"));
  RankDescription rank = Rank(*layout, Place("vllm", "mixtral"));
  EngineParameter& w2 = Named(rank, "model.layers.1.block_sparse_moe.experts.routed_experts.w2_weight");
  const EngineParameter newer = w2;
  w2.name = "model.layers.1.block_sparse_moe.experts.w2_weight";
  RankDescription both = rank;
  both.parameters.push_back(newer);
  CHECK(Completed(*layout, rank).empty());
  CHECK(Named(rank, "model.layers.1.block_sparse_moe.experts.w2_weight").slices.size() == 4);
  CHECK_THAT(Refusal(*layout, both), FailsWith(ErrorCode::kBadData, "routed_experts.w2_weight is there twice"));
}

TEST_CASE("A parameter that no rule knows is refused by name") {
  const auto layout = Layout(TinyModel("llama"));
  RankDescription rank = Rank(*layout, Place("sglang", "llama"));
  rank.parameters.push_back({.name = "model.layers.0.mlp.down_proj.weight_scale", .shape = {1}, .strides = {1}});
  CHECK_THAT(Refusal(*layout, rank), FailsWith(ErrorCode::kBadData,
                                               "no rule of sglang's llama knows parameter "
                                               "model.layers.0.mlp.down_proj.weight_scale BF16 [1]"));
}

TEST_CASE("A parameter of another shape or type is refused by name, with both") {
  const auto layout = Layout(TinyModel("glm4_moe"));
  const RankDescription good = Rank(*layout, Place("sglang", "glm4_moe", 2, 0));
  RankDescription rank = good;
  Named(rank, "model.layers.1.mlp.gate.weight").dtype = model::DType::kF16;
  CHECK_THAT(Refusal(*layout, rank),
             FailsWith(ErrorCode::kBadData, "model.layers.1.mlp.gate.weight is F16 [4, 32] and should be BF16 [4, 32]",
                       "directory"));
  rank = good;
  Named(rank, "model.layers.1.mlp.gate.e_score_correction_bias").dtype = model::DType::kBF16;
  CHECK_THAT(Refusal(*layout, rank),
             FailsWith(ErrorCode::kBadData, "e_score_correction_bias is BF16 [4] and should be F32 [4]"));
  rank = good;
  Named(rank, "model.layers.2.mlp.experts.w13_weight").shape = {4, 32, 16};
  CHECK_THAT(Refusal(*layout, rank),
             FailsWith(ErrorCode::kBadData, "w13_weight is BF16 [4, 32, 16] and should be BF16 [4, 16, 32]"));
}

TEST_CASE("Tensors in bf16 may be kept in fp32, as routers are") {
  const auto layout = Layout(TinyModel("glm4_moe"));
  RankDescription rank = Rank(*layout, Place("vllm", "glm4_moe", 2, 0));
  Named(rank, "model.layers.1.mlp.gate.weight").dtype = model::DType::kF32;
  Completed(*layout, rank);
  const EngineParameter& gate = Named(rank, "model.layers.1.mlp.gate.weight");
  CHECK(gate.dtype == model::DType::kF32);
  CHECK(gate.slices == std::vector<Slice>{{"model.layers.1.mlp.gate.weight", {0, 0}, {4, 32}, {0, 0}}});
}

TEST_CASE("More ranks than key/value heads need the number of heads, and the refusal says so") {
  const auto layout = Layout(TinyModel("qwen3"));
  RankDescription rank = Rank(*layout, Place("vllm", "qwen3", 4, 3));
  RankDescription given = rank;
  CHECK(Completed(*layout, given).empty());
  rank.place.key_value_heads = 0;
  CHECK_THAT(Refusal(*layout, rank), FailsWith(ErrorCode::kBadData, "qkv_proj.weight", "key_value_heads is not given"));
}

TEST_CASE("A tied head is made of the embedding where the rank has one, and missed nowhere where it has none") {
  const auto layout = Layout(TinyModel("qwen2"));
  RankDescription rank = Rank(*layout, Place("sglang", "qwen2", 2, 1));
  CHECK(Completed(*layout, rank).empty());

  rank = Rank(*layout, Place("sglang", "qwen2", 2, 1));
  EngineParameter head = Named(rank, "model.embed_tokens.weight");
  head.name = "lm_head.weight";
  rank.parameters.push_back(head);
  CHECK(Completed(*layout, rank).empty());
  CHECK(Named(rank, "lm_head.weight").slices == Named(rank, "model.embed_tokens.weight").slices);
  CHECK(rank.parameters.back().slices[0].tensor == "model.embed_tokens.weight");
  CHECK(rank.parameters.back().padding.size() == 1);
}

TEST_CASE("A rank of a pipeline may lack layers, but nothing of those that it has") {
  const auto layout = Layout(TinyModel("llama"));
  RankDescription whole = Rank(*layout, Place("vllm", "llama"));
  RankDescription stage = whole;
  std::erase_if(stage.parameters, [](const EngineParameter& parameter) {
    return parameter.name.starts_with("model.layers.0.") || parameter.name == "model.embed_tokens.weight";
  });
  CHECK(Completed(*layout, stage).empty());

  stage = Rank(*layout, Place("vllm", "llama"));
  std::erase_if(stage.parameters, [](const EngineParameter& parameter) {
    return parameter.name.starts_with("model.layers.0.") || parameter.name == "model.layers.1.self_attn.o_proj.weight";
  });
  CHECK_THAT(Refusal(*layout, stage),
             FailsWith(ErrorCode::kBadData, "model.layers.1.self_attn.o_proj.weight", "is not described"));
  std::erase_if(whole.parameters,
                [](const EngineParameter& parameter) { return parameter.name == "model.norm.weight"; });
  CHECK_THAT(Refusal(*layout, whole), FailsWith(ErrorCode::kBadData, "model.norm.weight", "is not described"));
}

TEST_CASE("Parameters of engine \"huggingface\" are whole tensors, and absent ones are left out") {
  const auto layout = Layout(TinyModel("qwen3"));
  RankDescription rank{.place = {.engine = "huggingface"}};
  for (const model::TensorMeta& tensor : layout->tensors()) {
    if (tensor.name == "lm_head.weight") continue;
    rank.parameters.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  const RankDescription good = rank;
  CHECK(Completed(*layout, rank) == std::vector<std::string>{"lm_head.weight"});
  CHECK(Named(rank, "model.embed_tokens.weight").slices ==
        std::vector<Slice>{{"model.embed_tokens.weight", {0, 0}, {200, 32}, {0, 0}}});

  rank = good;
  rank.parameters.push_back({.name = "model.rotary.inv_freq", .shape = {2}});
  CHECK_THAT(Refusal(*layout, rank), FailsWith(ErrorCode::kBadData, "model.rotary.inv_freq is no tensor of the model"));
  rank = good;
  Named(rank, "model.norm.weight").dtype = model::DType::kF32;
  CHECK(Completed(*layout, rank).size() == 1);
  rank = good;
  Named(rank, "model.norm.weight").dtype = model::DType::kF64;
  CHECK_THAT(Refusal(*layout, rank),
             FailsWith(ErrorCode::kBadData, "model.norm.weight is F64 [32] and should be BF16 [32]"));
}

TEST_CASE("Slices of engine \"described\" are left alone; others may not bring any") {
  const auto layout = Layout(TinyModel("llama"));
  RankDescription rank{.place = {.engine = "described"}};
  const Slice slice{"model.norm.weight", {8}, {4}, {0}};
  rank.parameters.push_back({.name = "anything", .shape = {4}, .strides = {1}, .slices = {slice}});
  const std::vector<std::string> unused = Completed(*layout, rank);
  CHECK(rank.parameters[0].slices == std::vector<Slice>{slice});
  CHECK(unused.size() == layout->tensors().size() - 1);
  CHECK(std::ranges::count(unused, "model.norm.weight") == 0);

  rank = Rank(*layout, Place("vllm", "llama"));
  rank.parameters[3].slices = {slice};
  CHECK_THAT(Refusal(*layout, rank),
             FailsWith(ErrorCode::kBadData, rank.parameters[3].name, "only an engine \"described\""));
}

TEST_CASE("Of all ranks of an engine, only what none takes is unused") {
  const auto layout = Layout(TinyModel("llama"));
  std::vector<RankDescription> ranks(2);
  for (size_t k = 0; k < layout->tensors().size() - 1; ++k) {
    const model::TensorMeta& tensor = layout->tensors()[k];
    RankDescription& rank = ranks[k % 2];
    rank.place.engine = "huggingface";
    rank.parameters.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  const std::string lacking = layout->tensors().back().name;
  std::vector<RankDescription> without = ranks;
  CHECK_THAT(CompleteDescriptions(*layout, without),
             FailsWith(ErrorCode::kBadData, "no parameter of the engine takes tensor " + lacking + " of the model:"));
  ranks[1].ignore = {GENERATE_REF(as<std::string>{}, lacking, "*" + lacking.substr(lacking.size() - 4))};
  const Result<std::vector<std::string>> unused = CompleteDescriptions(*layout, ranks);
  REQUIRE(unused.ok());
  CHECK(*unused == std::vector<std::string>{lacking});
  CHECK(ranks[1].parameters[0].slices.size() == 1);

  ranks[1].rank = 1;
  ranks[1].parameters[0].shape = {3};
  for (RankDescription& rank : ranks) {
    for (EngineParameter& parameter : rank.parameters) parameter.slices.clear();
  }
  const Result<std::vector<std::string>> wrong = CompleteDescriptions(*layout, ranks);
  REQUIRE_THAT(wrong, FailsWith(ErrorCode::kBadData, "rank 1: parameter " + ranks[1].parameters[0].name));
}

}  // namespace
}  // namespace lockstep::placement

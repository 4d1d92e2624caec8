// Models from the descriptions of several ranks.
#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/layout/copy_plan.h"
#include "export_plugin/plan/shard_description.h"

namespace lockstep::plan {
namespace {

constexpr char kLlama[] = R"({"model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
  "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 6,
  "vocab_size": 10, "tie_word_embeddings": false})";

std::vector<ShardDescription> LlamaDescriptions(const rules::Topology& topology) {
  auto descriptions = ExpectedDescriptions(kLlama, topology, 0, /*fused_norms=*/false);
  INFO(descriptions.status().ToString());
  REQUIRE(descriptions.ok());
  return *std::move(descriptions);
}

MegatronDescription& Megatron(ShardDescription& description) {
  return std::get<MegatronDescription>(description.parts[0]);
}

// Rows [first, first + rows) of a tensor of `total` rows of 4.
TensorDescription Rows(const std::string& name, uint64_t first, uint64_t rows, uint64_t total) {
  TensorDescription tensor{.name = name, .shape = {total, 4}, .local_shape = {rows, 4}};
  if (rows > 0) tensor.boxes = layout::Box({0, 0}, {first, 0}, {rows, 4});
  return tensor;
}

ShardDescription Tensors(std::vector<TensorDescription> tensors) {
  return {.parts = {std::move(tensors)}};
}

void CheckRefused(const std::vector<ShardDescription>& descriptions, const std::string& what) {
  const auto model = BuildTrainingModel(descriptions);
  REQUIRE(model.status().code() == ErrorCode::kBadData);
  CAPTURE(model.status().message());
  CHECK_THAT(model, FailsWith(ErrorCode::kBadData, what));
}

TEST_CASE("Every local tensor has one holding, rank by rank in the order of the descriptions") {
  const std::vector<ShardDescription> descriptions = LlamaDescriptions({.world = 4, .tensor = 2, .pipeline = 2});
  const auto model = BuildTrainingModel(descriptions);
  REQUIRE(model.ok());
  size_t next = 0;
  for (uint32_t rank = 0; rank < descriptions.size(); ++rank) {
    const std::vector<DescribedLocal> locals = LocalsOf(descriptions[rank]);
    CHECK(SourcesOfRank(*model, rank).size() == locals.size());
    for (const DescribedLocal& local : locals) {
      REQUIRE(next < model->holdings.size());
      CHECK(model->holdings[next].rank == rank);
      CHECK(model->holdings[next].local_shape == local.shape);
      ++next;
    }
  }
  CHECK(next == model->holdings.size());
}

TEST_CASE("Tensors come part by part, and in a part as they are first mentioned") {
  const std::vector<ShardDescription> descriptions = {
      {.parts = {std::vector<TensorDescription>{Rows("b", 0, 2, 2)},
                 std::vector<TensorDescription>{Rows("d", 0, 1, 1)}}},
      {.parts = {std::vector<TensorDescription>{Rows("c", 0, 1, 1), Rows("b", 0, 2, 2)},
                 std::vector<TensorDescription>{}}}};
  const auto model = BuildTrainingModel(descriptions);
  REQUIRE(model.ok());
  REQUIRE(model->tensors.size() == 3);
  CHECK(model->tensors[0].name == "b");
  CHECK(model->tensors[1].name == "c");
  CHECK(model->tensors[2].name == "d");
  CHECK(model->tensors[2].offset == 24);
  CHECK(SourcesOfRank(*model, 1) == std::vector<uint32_t>{1, 0});
}

TEST_CASE("Tensors that must move to be aligned take their conversions and groups along") {
  TensorDescription odd{
      .name = "odd", .dtype = model::DType::kBF16, .shape = {3}, .local_shape = {3}, .boxes = layout::Whole({3})};
  TensorDescription wide{
      .name = "wide", .dtype = model::DType::kF32, .shape = {2}, .local_shape = {2}, .boxes = layout::Whole({2})};
  const auto model = BuildTrainingModel({Tensors({odd, wide})});
  REQUIRE(model.ok());
  CHECK(model->tensors[0].name == "wide");
  CHECK(model->tensors[1].offset == 8);
  CHECK(model->groups == std::vector<uint32_t>{1, 0});
  CHECK(model->sources[0].name == "odd");
  CHECK(model->conversions[0].source == 0);
  CHECK(model->conversions[0].tensor == 1);
  CHECK(model->conversions[1].tensor == 0);
}

TEST_CASE("A source is frozen only when every rank that mentions it says so") {
  const auto Frozen = [](TensorDescription tensor, bool frozen) {
    tensor.frozen = frozen;
    return tensor;
  };
  const auto model = BuildTrainingModel(
      {Tensors({Frozen(Rows("all", 0, 1, 2), true), Frozen(Rows("some", 0, 1, 2), true)}),
       Tensors({Frozen(Rows("all", 1, 1, 2), true), Frozen(Rows("some", 1, 1, 2), false)}), Tensors({})});
  REQUIRE(model.ok());
  CHECK(model->sources[0].frozen);
  CHECK_FALSE(model->sources[1].frozen);

  std::vector<ShardDescription> descriptions = LlamaDescriptions({.world = 2, .tensor = 2, .expert_tensor = 2});
  for (ShardDescription& description : descriptions) Megatron(description).parameters[0].frozen = true;
  Megatron(descriptions[1]).parameters[1].frozen = true;
  const auto llama = BuildTrainingModel(descriptions);
  REQUIRE(llama.ok());
  CHECK(llama->sources[SourcesOfRank(*llama, 0)[0]].frozen);
  CHECK_FALSE(llama->sources[SourcesOfRank(*llama, 0)[1]].frozen);
}

TEST_CASE("A stacked tensor becomes the tensors of its experts") {
  TensorDescription stacked{.name = "experts.gate_up",
                            .shape = {2, 6, 4},
                            .local_shape = {1, 6, 4},
                            .boxes = layout::Box({0, 0, 0}, {0, 0, 0}, {1, 6, 4})};
  stacked.into = {{"experts.0.gate_proj.weight", {3, 4}, {0, 0, 0}},
                  {"experts.0.up_proj.weight", {3, 4}, {0, 3, 0}},
                  {"experts.1.gate_proj.weight", {3, 4}, {1, 0, 0}},
                  {"experts.1.up_proj.weight", {3, 4}, {1, 3, 0}}};
  TensorDescription other = stacked;
  other.boxes[0].target = {1, 0, 0};
  const std::vector<ShardDescription> descriptions = {Tensors({stacked}), Tensors({other})};
  const auto model = BuildTrainingModel(descriptions);
  REQUIRE(model.ok());
  CHECK(model->tensors.size() == 4);
  CHECK(model->groups == std::vector<uint32_t>{0, 0, 1, 1});
  const auto plan = layout::CompileExport(*model, OnAgentHost(descriptions));
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  REQUIRE(plan->ranks[1].entries.size() == 2);
  CHECK(plan->ranks[1].entries[1].tensor == 3);
  CHECK(plan->ranks[1].entries[1].pieces == layout::Box({0, 3, 0}, {0, 0, 0}, {1, 3, 4}));
}

TEST_CASE("What engines keep fused is one group") {
  std::vector<TensorDescription> tensors;
  for (const char* name :
       {"m.layers.0.self_attn.q_proj.weight", "m.layers.0.self_attn.q_proj.bias", "m.layers.0.self_attn.k_proj.weight",
        "m.layers.0.self_attn.v_proj.weight", "m.layers.0.self_attn.o_proj.weight", "m.layers.0.mlp.gate_proj.weight",
        "m.layers.0.mlp.up_proj.weight", "m.layers.1.mlp.up_proj.weight", "norm"}) {
    tensors.push_back(Rows(name, 0, 1, 1));
  }
  const auto model = BuildTrainingModel({Tensors(tensors)});
  REQUIRE(model.ok());
  CHECK(model->groups == std::vector<uint32_t>{0, 0, 0, 0, 1, 2, 2, 3, 4});
}

TEST_CASE("Ranks that describe different parts are refused") {
  const std::vector<ShardDescription> llama = LlamaDescriptions({});
  CheckRefused({}, "0 descriptions");
  CheckRefused(
      {Tensors({}), ShardDescription{.parts = {std::vector<TensorDescription>{}, std::vector<TensorDescription>{}}}},
      "rank 1 has 2 parts, rank 0 has 1");
  CheckRefused({Tensors({}), llama[0]}, "parts[0] of rank 1 and of rank 0 are of different kinds");
}

TEST_CASE("Ranks with another configuration are named") {
  std::vector<ShardDescription> descriptions = LlamaDescriptions({.world = 16, .tensor = 2, .expert_tensor = 2});
  for (size_t rank = 3; rank < 14; ++rank) Megatron(descriptions[rank]).config += " ";
  CheckRefused(descriptions,
               "parts[0]: the model configuration of rank 3, 4, 5, 6, 7, 8, 9, 10 and 3 more is not that of");
}

TEST_CASE("Ranks that count groups differently are named") {
  std::vector<ShardDescription> descriptions = LlamaDescriptions({.world = 2, .tensor = 2, .expert_tensor = 2});
  Megatron(descriptions[1]).place.tensor.of = 4;
  CheckRefused(descriptions, "rank 1 counts groups of tensor 4");
}

TEST_CASE("Tensors of several ranks make one HuggingFace tensor together") {
  const auto half = [](const std::string& name, uint64_t row) {
    TensorDescription tensor = Rows(name, 0, 1, 1);
    tensor.into = {{"w", {2, 4}, {0, 0}, {row, 0}, {1, 4}}};
    return tensor;
  };
  const auto build = [](const TensorDescription& a, const TensorDescription& b) {
    return BuildTrainingModel({Tensors({a}), Tensors({b})});
  };
  const auto model = build(half("a", 0), half("b", 1));
  REQUIRE(model.ok());
  CHECK(model->tensors.size() == 1);
  const auto plan = layout::CompileExport(*model, {true, true});
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  CHECK(plan->ranks[0].entries.size() == 1);
  CHECK(plan->ranks[1].entries.size() == 1);

  CHECK_THAT(layout::CompileExport(*build(half("a", 0), half("b", 0)), {true, true}),
             FailsWith(ErrorCode::kBadData, "\"w\""));
  TensorDescription longer = half("b", 1);
  longer.into[0].shape = {3, 4};
  CHECK_THAT(build(half("a", 0), longer),
             FailsWith(ErrorCode::kBadData,
                       "\"w\" is BF16 [2, 4] as [2, 4] by another, and BF16 [3, 4] as [3, 4] by this one"));
}

TEST_CASE("Columns of two tensors take turns in a HuggingFace tensor whose dimension is split") {
  const auto half = [](const std::string& name, uint64_t turn) {
    TensorDescription tensor = Rows(name, 0, 2, 2);
    tensor.shape = tensor.local_shape = {2, 4, 1};
    tensor.boxes = layout::Whole(tensor.shape);
    tensor.into = {{"w", {2, 8}, {0, 0, 0}, {0, 0, turn}, {2, 4, 1}, {2, 4, 2}}};
    return tensor;
  };
  const auto model = BuildTrainingModel({Tensors({half("a", 0)}), Tensors({half("b", 1)})});
  REQUIRE(model.ok());
  CHECK(model->tensors[0].shape == layout::Extents{2, 4, 2});
  CHECK(layout::HuggingFaceTensors(*model)[0].shape == layout::Extents{2, 8});
  CHECK(layout::CompileExport(*model, {true, true}).ok());
  TensorDescription other = half("b", 1);
  other.into[0].as = {4, 2, 2};
  CHECK_THAT(
      BuildTrainingModel({Tensors({half("a", 0)}), Tensors({other})}),
      FailsWith(ErrorCode::kBadData, "[2, 8] as [2, 4, 2] by another, and BF16 [2, 8] as [4, 2, 2] by this one"));
}

TEST_CASE("A parameter that no rule covers is named with its rank") {
  std::vector<ShardDescription> descriptions = LlamaDescriptions({.world = 2, .tensor = 2, .expert_tensor = 2});
  Megatron(descriptions[1]).parameters[3].name = "decoder.layers.0.self_attention.linear_surprise.weight";
  CheckRefused(descriptions, "rank 1");
  CheckRefused(descriptions, "linear_surprise");
}

TEST_CASE("A parameter that a rank holds under two names is refused, naming both") {
  std::vector<ShardDescription> descriptions = LlamaDescriptions({});
  rules::LocalParameter norm = Megatron(descriptions[0]).parameters[1];
  REQUIRE(norm.name == "decoder.layers.0.input_layernorm.weight");
  norm.name = "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight";
  Megatron(descriptions[0]).parameters.push_back(norm);
  CheckRefused(descriptions, "as decoder.layers.0.input_layernorm.weight and as " + norm.name);
}

TEST_CASE("A tensor that two ranks describe differently is refused, naming both") {
  TensorDescription other = Rows("w", 1, 1, 2);
  other.shape = {3, 4};
  CheckRefused({Tensors({Rows("w", 0, 1, 2)}), Tensors({}), Tensors({other})},
               "tensor \"w\": its shape is [2, 4] on rank 0 and [3, 4] on rank 2");
  other = Rows("w", 1, 1, 2);
  other.dtype = model::DType::kF32;
  CheckRefused({Tensors({Rows("w", 0, 1, 2)}), Tensors({other})}, "its dtype is BF16 on rank 0 and F32 on rank 1");
  other = Rows("w", 1, 1, 2);
  other.into = {{"v", {2, 4}, {0, 0}}};
  CheckRefused({Tensors({Rows("w", 0, 1, 2)}), Tensors({other})}, "\"into\"");
}

TEST_CASE("A HuggingFace tensor that is made twice is refused") {
  TensorDescription into = Rows("w", 0, 2, 2);
  into.into = {{"v", {4}, {0, 0}}, {"v", {4}, {1, 0}}};
  CheckRefused({Tensors({into})}, "HuggingFace tensor \"v\" is made twice");
  std::vector<ShardDescription> descriptions = LlamaDescriptions({});
  descriptions[0].parts.push_back(std::vector<TensorDescription>{Rows("lm_head.weight", 0, 1, 1)});
  CheckRefused(descriptions, "HuggingFace tensor \"lm_head.weight\" is made twice");
}

TEST_CASE("Expected descriptions say which ranks are on the agent's host, and survive being written") {
  const auto descriptions =
      ExpectedDescriptions(kLlama, {.world = 4, .tensor = 2, .pipeline = 2, .expert_tensor = 2}, 2, true);
  REQUIRE(descriptions.ok());
  CHECK(OnAgentHost(*descriptions) == std::vector<bool>{true, true, false, false});
  const auto& part = std::get<MegatronDescription>((*descriptions)[3].parts[0]);
  CHECK(part.place.tensor.at == 1);
  CHECK(part.place.pipeline == 1);
  CHECK(part.parameters[0].name == "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight");
  for (const ShardDescription& description : *descriptions) {
    const auto read = ParseDescription(ToJson(description));
    REQUIRE(read.ok());
    CHECK(ToJson(*read) == ToJson(description));
    CHECK(std::get<MegatronDescription>(read->parts[0]).config ==
          std::get<MegatronDescription>(description.parts[0]).config);
  }
}

TEST_CASE("A topology that cannot be is refused before anything is made") {
  CHECK(ExpectedDescriptions(kLlama, {.world = 3, .tensor = 2}, 0, false).status().code() == ErrorCode::kBadData);
  CHECK(ExpectedDescriptions("{}", {}, 0, false).status().code() == ErrorCode::kBadData);
  CHECK_THAT(ExpectedDescriptions(kLlama, {.world = 1 << 20}, 0, false), FailsWith(ErrorCode::kBadData, "limit"));
}

}  // namespace
}  // namespace lockstep::plan

// What a rank holds by a parameter: names, places, and element by element against formulas written out here.
#include <functional>

#include "common/base/status_testing.h"
#include "common/layout/layout_testing.h"
#include "export_plugin/rules/rules_testing.h"

namespace lockstep::rules {
namespace {

struct Matrix {
  layout::Extents shape;
  std::vector<uint64_t> values;  // row-major

  uint64_t& At(uint64_t row, uint64_t column) { return values[row * shape[1] + column]; }
};

Matrix Filled(uint64_t rows, uint64_t columns, const std::function<uint64_t(uint64_t, uint64_t)>& value) {
  Matrix matrix{{rows, columns}, std::vector<uint64_t>(rows * columns)};
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t column = 0; column < columns; ++column) matrix.At(row, column) = value(row, column);
  }
  return matrix;
}

void Apply(const layout::Pieces& pieces, const Matrix& from, Matrix& to) {
  std::vector<layout::StridedCopy> copies;
  layout::AppendCopies(pieces, layout::TensorView::Contiguous(from.shape, 8, 0),
                       layout::TensorView::Contiguous(to.shape, 8, 0), copies);
  REQUIRE(
      layout::RunCopies(copies, std::as_bytes(std::span(from.values)), std::as_writable_bytes(std::span(to.values))));
}

uint64_t Code(uint64_t tensor, uint64_t row, uint64_t column) {
  return tensor * 1'000'000 + row * 1'000 + column + 1;
}

// The HuggingFace tensors that shards of one parameter give: `shard(t)` is what tensor rank t holds.
std::vector<Matrix> Exported(const MegatronRules& rules, const std::string& name, uint32_t tensor,
                             const std::function<Matrix(uint32_t)>& shard) {
  const layout::TrainingModel& model = rules.model();
  std::vector<Matrix> out;
  for (const layout::Conversion& conversion : model.conversions) {
    if (model.sources[conversion.source].name != name) continue;
    const layout::Extents& shape = model.tensors[conversion.tensor].shape;
    out.push_back(Filled(shape[0], shape[1], [](uint64_t, uint64_t) { return 0; }));
    for (uint32_t t = 0; t < tensor; ++t) {
      Matrix local = shard(t);
      const RankCoordinates place{.tensor = {t, tensor}, .expert_tensor = {t, tensor}};
      const auto holding = rules.HoldingOf({.name = name, .shape = local.shape}, place);
      INFO(holding.status().ToString());
      REQUIRE(holding.ok());
      CHECK(model.sources[holding->source].name == name);
      Apply(layout::Compose(holding->pieces, conversion.pieces), local, out.back());
    }
  }
  return out;
}

TEST_CASE("Query groups become q, k and v, for more and for fewer groups than tensor ranks") {
  const MegatronRules rules = RulesOf(TinyConfig("llama"));  // 4 heads, 2 groups, head_dim 3
  const uint64_t d = 3, r = 2;
  const auto whole = [&](uint64_t row) {  // row of the fused tensor -> code of the HuggingFace row
    const uint64_t group = row / ((r + 2) * d), inner = row % ((r + 2) * d);
    if (inner < r * d) return std::pair<uint64_t, uint64_t>{0, group * r * d + inner};
    if (inner < (r + 1) * d) return std::pair<uint64_t, uint64_t>{1, group * d + inner - r * d};
    return std::pair<uint64_t, uint64_t>{2, group * d + inner - (r + 1) * d};
  };
  for (const uint32_t tensor : {1u, 2u, 4u, 8u}) {
    const uint64_t rows = 24 / tensor;
    const auto out = Exported(rules, "decoder.layers.1.self_attention.linear_qkv.weight", tensor, [&](uint32_t t) {
      return Filled(rows, 8, [&](uint64_t row, uint64_t column) {
        const auto [which, target] = whole(t * rows + row);
        return Code(which, target, column);
      });
    });
    REQUIRE(out.size() == 3);
    for (uint64_t which = 0; which < 3; ++which) {
      CHECK(out[which].values == Filled(which == 0 ? 12 : 6, 8, [&](uint64_t row, uint64_t column) {
                                   return Code(which, row, column);
                                 }).values);
    }
  }
}

TEST_CASE("A GLU shard is its part of gate, then its part of up") {
  const auto shard = [](uint64_t ffn, uint32_t tensor) {
    return [=](uint32_t t) {
      const uint64_t part = ffn / tensor;
      return Filled(2 * part, 8, [=](uint64_t row, uint64_t column) {
        return row < part ? Code(0, t * part + row, column) : Code(1, t * part + row - part, column);
      });
    };
  };
  for (const uint32_t tensor : {1u, 2u, 5u}) {
    const auto out =
        Exported(RulesOf(TinyConfig("llama")), "decoder.layers.0.mlp.linear_fc1.weight", tensor, shard(10, tensor));
    REQUIRE(out.size() == 2);
    for (uint64_t which = 0; which < 2; ++which) {
      CHECK(out[which].values ==
            Filled(10, 8, [&](uint64_t row, uint64_t column) { return Code(which, row, column); }).values);
    }
    const auto fused =
        Exported(RulesOf(TinyConfig("glm4")), "decoder.layers.0.mlp.linear_fc1.weight", tensor, shard(10, tensor));
    REQUIRE(fused.size() == 1);
    CHECK(fused[0].values ==
          Filled(20, 8, [](uint64_t row, uint64_t column) { return Code(row / 10, row % 10, column); }).values);
  }
  const auto expert =
      Exported(RulesOf(TinyConfig("qwen3_moe")), "decoder.layers.0.mlp.experts.linear_fc1.weight1", 3, shard(6, 3));
  REQUIRE(expert.size() == 2);
  CHECK(expert[1].values == Filled(6, 8, [](uint64_t row, uint64_t column) { return Code(1, row, column); }).values);
}

TEST_CASE("Rows of a padded vocabulary are left behind, whatever the padding") {
  const MegatronRules rules = RulesOf(TinyConfig("llama"));  // vocabulary 11
  for (const char* name : {"embedding.word_embeddings.weight", "output_layer.weight"}) {
    for (const auto& [tensor, rows] :
         std::vector<std::pair<uint32_t, uint64_t>>{{1, 11}, {1, 64}, {2, 6}, {4, 4}, {4, 32}}) {
      const auto out = Exported(rules, name, tensor, [&, rows = rows](uint32_t t) {
        return Filled(rows, 8, [&](uint64_t row, uint64_t column) { return Code(0, t * rows + row, column); });
      });
      REQUIRE(out.size() == 1);
      CHECK(out[0].values == Filled(11, 8, [](uint64_t row, uint64_t column) { return Code(0, row, column); }).values);
    }
  }
  const auto padding = rules.HoldingOf({.name = "output_layer.weight", .shape = {32, 8}}, {.tensor = {3, 4}});
  REQUIRE(padding.ok());
  CHECK(padding->pieces.empty());
}

TEST_CASE("Row-parallel parameters are cut by columns") {
  const MegatronRules rules = RulesOf(TinyConfig("llama"));
  const auto out = Exported(rules, "decoder.layers.0.self_attention.linear_proj.weight", 4, [](uint32_t t) {
    return Filled(8, 3, [=](uint64_t row, uint64_t column) { return Code(0, row, t * 3 + column); });
  });
  REQUIRE(out.size() == 1);
  CHECK(out[0].values == Filled(8, 12, [](uint64_t row, uint64_t column) { return Code(0, row, column); }).values);
}

TEST_CASE("Padding is to a multiple of the divisor times tensor parallelism") {
  CHECK(PaddedVocabulary(151936, 128, 1) == 151936);
  CHECK(PaddedVocabulary(151936, 128, 8) == 152576);
  CHECK(PaddedVocabulary(11, 1, 4) == 12);
}

std::string SourceOf(const MegatronRules& rules, const std::string& name, const layout::Extents& shape,
                     const RankCoordinates& place = {}) {
  const auto holding = rules.HoldingOf({.name = name, .shape = shape}, place);
  INFO(holding.status().ToString());
  REQUIRE(holding.ok());
  return rules.model().sources[holding->source].name;
}

TEST_CASE("Names of both layer specs lead to the same source") {
  const MegatronRules rules = RulesOf(TinyConfig("deepseek_v3"));
  const std::string layer = "decoder.layers.1.";
  for (const std::string& name :
       {layer + "self_attention.linear_kv_up_proj.layer_norm_weight", layer + "self_attention.kv_layernorm.weight"}) {
    CHECK(SourceOf(rules, name, {7}) == layer + "self_attention.linear_kv_up_proj.layer_norm_weight");
  }
  for (const char* name : {"mtp.layers.0.transformer_layer.self_attention.linear_q_up_proj.weight",
                           "module.module.mtp.layers.0.mtp_model_layer.self_attention.linear_q_up_proj.weight"}) {
    CHECK(SourceOf(rules, name, {12, 5}) == "mtp.layers.0.transformer_layer.self_attention.linear_q_up_proj.weight");
  }
}

TEST_CASE("Local expert numbers become global ones") {
  nlohmann::json config = TinyConfig("qwen3_moe");
  config["num_experts"] = 12;
  const MegatronRules rules = RulesOf(config);
  const RankCoordinates place{.expert = {2, 3}};
  for (const char* name : {"decoder.layers.0.mlp.experts.linear_fc2.weight1",
                           "decoder.layers.0.mlp.experts.local_experts.1.linear_fc2.weight"}) {
    CHECK(SourceOf(rules, name, {8, 6}, place) == "decoder.layers.0.mlp.experts.linear_fc2.weight9");
  }
}

TEST_CASE("Latent down projections may be sharded or not, as their shape says") {
  const MegatronRules rules = RulesOf(TinyConfig("deepseek_v3"));  // 8 rows
  const std::string name = "decoder.layers.0.self_attention.linear_kv_down_proj.weight";
  const RankCoordinates place{.tensor = {1, 2}};
  CHECK(rules.HoldingOf({.name = name, .shape = {4, 8}}, place)->pieces == layout::ShardOf({8, 8}, 0, 1, 2));
  CHECK(rules.HoldingOf({.name = name, .shape = {8, 8}}, place)->pieces == layout::Whole({8, 8}));
}

TEST_CASE("A tied head and an embedding beyond the first stage are copies") {
  nlohmann::json config = TinyConfig("deepseek_v3");
  const LocalParameter embedding{.name = "embedding.word_embeddings.weight", .shape = {11, 8}};
  const LocalParameter head{.name = "output_layer.weight", .shape = {11, 8}};
  const RankCoordinates first, last{.pipeline = 1};
  const MegatronRules untied = RulesOf(config);
  CHECK_FALSE(untied.HoldingOf(embedding, first)->copy);
  CHECK(untied.HoldingOf(embedding, last)->copy);
  CHECK_FALSE(untied.HoldingOf(head, last)->copy);
  config["tie_word_embeddings"] = true;
  const MegatronRules tied = RulesOf(config);
  CHECK(tied.HoldingOf(head, last)->copy);
  CHECK(tied.HoldingOf(head, first)->copy);
  CHECK(tied.HoldingOf(head, last)->source == tied.HoldingOf(embedding, first)->source);
}

Status Refusal(const std::string& family, const std::string& name, const layout::Extents& shape = {8},
               const RankCoordinates& place = {}) {
  const auto holding = RulesOf(TinyConfig(family)).HoldingOf({.name = name, .shape = shape}, place);
  CHECK_THAT(holding, FailsWith(ErrorCode::kBadData, "parameter '" + name + "'"));
  return holding.status();
}

TEST_CASE("A parameter that no rule covers is refused with the nearest rule") {
  CHECK_THAT(
      Refusal("llama", "decoder.layers.0.self_attention.linear_qkw.weight"),
      FailsWith(ErrorCode::kBadData, "no rule of family llama", "'self_attention.linear_qkv.weight'", "by its bridge"));
  CHECK_THAT(Refusal("llama", "embedding.position_embeddings.weight"),
             FailsWith(ErrorCode::kBadData, "'embedding.word_embeddings.weight'"));
  CHECK_THAT(Refusal("llama", ""), FailsWith(ErrorCode::kBadData, "no rule"));
  CHECK_THAT(Refusal("llama", "decoder.layers.01.input_layernorm.weight"), FailsWith(ErrorCode::kBadData, "no rule"));
  CHECK_THAT(Refusal("llama", "decoder.layers.9999999999.input_layernorm.weight"),
             FailsWith(ErrorCode::kBadData, "no rule"));
  CHECK_THAT(Refusal("qwen3_moe", "decoder.layers.0.mlp.experts.local_experts.x.linear_fc1.weight"),
             FailsWith(ErrorCode::kBadData, "no rule"));
  CHECK_THAT(Refusal("deepseek_v3", "mtp.layers.0.input_layernorm.weight"), FailsWith(ErrorCode::kBadData, "no rule"));
}

TEST_CASE("A parameter that this configuration does not have is refused with what it would need") {
  CHECK_THAT(Refusal("llama", "decoder.layers.0.self_attention.linear_qkv.bias"),
             FailsWith(ErrorCode::kBadData, "a bias on q, k and v"));
  CHECK_THAT(Refusal("llama", "decoder.layers.0.self_attention.q_layernorm.weight"),
             FailsWith(ErrorCode::kBadData, "norms of q and k"));
  CHECK_THAT(Refusal("deepseek_v3", "decoder.layers.0.mlp.router.weight"),
             FailsWith(ErrorCode::kBadData, "layer 0 has a dense MLP"));
  CHECK_THAT(Refusal("deepseek_v3", "decoder.layers.1.mlp.linear_fc2.weight"),
             FailsWith(ErrorCode::kBadData, "layer 1 has experts"));
  CHECK_THAT(Refusal("llama", "decoder.layers.2.input_layernorm.weight"),
             FailsWith(ErrorCode::kBadData, "the model has 2 decoder layers"));
  CHECK_THAT(Refusal("deepseek_v3", "mtp.layers.1.enorm.weight"),
             FailsWith(ErrorCode::kBadData, "1 MTP layers (num_nextn_predict_layers)"));
  CHECK_THAT(Refusal("qwen3_moe", "decoder.layers.0.mlp.experts.linear_fc2.weight1", {8, 6}, {.expert = {1, 2}}),
             FailsWith(ErrorCode::kBadData, "each of 2 expert-parallel ranks has 1 of 2 experts"));
  CHECK_THAT(Refusal("qwen3_moe", "decoder.layers.0.mlp.experts.linear_fc2.weight0", {8, 6}, {.expert = {0, 3}}),
             FailsWith(ErrorCode::kBadData, "2 experts do not divide over 3"));
}

TEST_CASE("What is known to be no plain parameter is refused with what to do") {
  const std::string experts = "decoder.layers.0.mlp.experts.";
  CHECK_THAT(Refusal("qwen3_moe", experts + "weight1"), FailsWith(ErrorCode::kBadData, "GroupedMLP", "TEGroupedMLP"));
  CHECK_THAT(Refusal("qwen3_moe", experts + "weight2"), FailsWith(ErrorCode::kBadData, "GroupedMLP"));
  CHECK_THAT(Refusal("qwen3_moe", experts + "linear_fc1.weight"),
             FailsWith(ErrorCode::kBadData, "moe_single_grouped_weight"));
  CHECK_THAT(Refusal("llama", "decoder.layers.0.mlp.linear_fc1.weight_scale_inv"),
             FailsWith(ErrorCode::kBadData, "fp8"));
  CHECK_THAT(Refusal("llama", "decoder.layers.0.mlp.linear_fc1.input_scale"), FailsWith(ErrorCode::kBadData, "fp8"));
  CHECK_THAT(Refusal("llama", "decoder.layers.0.self_attention.linear_qkv.lora_A.weight"),
             FailsWith(ErrorCode::kBadData, "adapter"));
  CHECK_THAT(Refusal("llama", "decoder.layers.0.mlp.linear_fc1.adapter.linear_in.weight"),
             FailsWith(ErrorCode::kBadData, "adapter"));
  CHECK_THAT(Refusal("llama", "decoder.layers.0.mlp.linear_fc1._extra_state"),
             FailsWith(ErrorCode::kBadData, "leave it out"));
}

TEST_CASE("A shape that is not the shard's is refused with both") {
  const RankCoordinates place{.tensor = {1, 2}};
  CHECK_THAT(Refusal("llama", "decoder.layers.0.mlp.linear_fc2.weight", {8, 10}, place),
             FailsWith(ErrorCode::kBadData, "its shape is [8, 10], but shard 1 of 2 of the whole [8, 10] is [8, 5]"));
  CHECK_THAT(Refusal("llama", "decoder.layers.0.mlp.linear_fc2.weight", {10}),
             FailsWith(ErrorCode::kBadData, "its shape is [10]"));
  CHECK_THAT(Refusal("llama", "decoder.layers.0.mlp.linear_fc1.weight", {6, 8}, {.tensor = {0, 3}}),
             FailsWith(ErrorCode::kBadData, "rows of the whole [20, 8] do not divide into 3 parts of gate and up"));
  CHECK_THAT(Refusal("llama", "output_layer.weight", {5, 8}, place),
             FailsWith(ErrorCode::kBadData, "at least 6 rows of 8"));
  CHECK_THAT(Refusal("llama", "output_layer.weight", {6, 9}, place),
             FailsWith(ErrorCode::kBadData, "at least 6 rows of 8"));
  CHECK_THAT(Refusal("llama", "output_layer.weight", {~uint64_t{0}, 8}, place),
             FailsWith(ErrorCode::kBadData, "at least 6 rows"));
  CHECK_THAT(Refusal("llama", "output_layer.weight", {}, place), FailsWith(ErrorCode::kBadData, "its shape is []"));
  CHECK_THAT(Refusal("llama", "output_layer.weight", {11, 8}, {.tensor = {2, 2}}),
             FailsWith(ErrorCode::kBadData, "tensor 2 of 2"));
}

}  // namespace
}  // namespace lockstep::rules

#include "raas_receiver/placement/rules/rules.h"

#include <catch2/catch.hpp>
#include <string>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "raas_receiver/placement/rules/rule_table.h"
#include "raas_receiver/placement/rules/rules_testing.h"
#include "raas_receiver/placement/rules/test_layouts.h"

namespace lockstep::placement {
namespace {

ExpandedRules Expanded(const ModelShape& model, const EnginePlace& place) {
  const auto layout = LayoutOf(model);
  REQUIRE(layout.ok());
  Result<ExpandedRules> rules = ExpandRules(**layout, place);
  INFO(rules.status().ToString());
  REQUIRE(rules.ok());
  return *std::move(rules);
}

const EngineParameter& Named(const ExpandedRules& rules, const std::string& name) {
  for (const EngineParameter& parameter : rules.parameters) {
    if (parameter.name == name) return parameter;
  }
  FAIL("no parameter " << name);
  return rules.parameters.front();
}

EnginePlace Tp(const std::string& engine, const std::string& family, uint32_t size, uint32_t rank, uint64_t kv_heads) {
  EnginePlace place{.engine = engine, .family = family, .tensor = {size, rank}};
  place.expert_tensor = place.tensor;
  place.key_value_heads = kv_heads;
  return place;
}

// What refuses `tensors`.
Status Refusal(std::vector<model::TensorMeta> tensors, const EnginePlace& place) {
  const auto layout = LayoutOf(std::move(tensors));
  REQUIRE(layout.ok());
  return ExpandRules(**layout, place).status();
}

Status Refusal(const ModelShape& model, const EnginePlace& place) {
  return Refusal(TestTensors(model).Make(), place);
}

model::TensorMeta& Find(std::vector<model::TensorMeta>& tensors, const std::string& name) {
  for (model::TensorMeta& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  FAIL("no tensor " << name);
  return tensors.front();
}

TEST_CASE("Qwen3-30B-A3B has 18,867 tensors, and at TP 8 SGLang's and vLLM's shapes") {
  const ModelShape model = Qwen3_30B_A3B();
  REQUIRE(TestTensors(model).Make().size() == 18'867);
  const ExpandedRules sglang = Expanded(model, Tp("sglang", "qwen3_moe", 8, 5, 4));
  REQUIRE(sglang.unused.empty());
  REQUIRE(sglang.parameters.size() == 3 + 48 * 9);
  CHECK(Named(sglang, "model.embed_tokens.weight").shape == layout::Extents{18'992, 2048});
  const EngineParameter& qkv = Named(sglang, "model.layers.47.self_attn.qkv_proj.weight");
  CHECK(qkv.shape == layout::Extents{512 + 128 + 128, 2048});
  REQUIRE(qkv.slices.size() == 3);
  CHECK(qkv.slices[0] == Slice{"model.layers.47.self_attn.q_proj.weight", {2560, 0}, {512, 2048}, {0, 0}});
  CHECK(qkv.slices[1] == Slice{"model.layers.47.self_attn.k_proj.weight", {256, 0}, {128, 2048}, {512, 0}});
  CHECK(qkv.slices[2] == Slice{"model.layers.47.self_attn.v_proj.weight", {256, 0}, {128, 2048}, {640, 0}});
  CHECK(Named(sglang, "model.layers.0.self_attn.o_proj.weight").shape == layout::Extents{2048, 512});
  CHECK(Named(sglang, "model.layers.0.self_attn.q_norm.weight").shape == layout::Extents{128});
  CHECK(Named(sglang, "model.layers.0.mlp.gate.weight").shape == layout::Extents{128, 2048});
  const EngineParameter& w13 = Named(sglang, "model.layers.9.mlp.experts.w13_weight");
  CHECK(w13.shape == layout::Extents{128, 192, 2048});
  REQUIRE(w13.slices.size() == 256);
  CHECK(w13.slices[7] == Slice{"model.layers.9.mlp.experts.3.up_proj.weight", {480, 0}, {96, 2048}, {3, 96, 0}});
  const EngineParameter& w2 = Named(sglang, "model.layers.9.mlp.experts.w2_weight");
  CHECK(w2.shape == layout::Extents{128, 2048, 96});
  CHECK(w2.slices[127] == Slice{"model.layers.9.mlp.experts.127.down_proj.weight", {0, 480}, {2048, 96}, {127, 0, 0}});

  EnginePlace whole_experts = Tp("vllm", "qwen3_moe", 8, 5, 4);
  whole_experts.expert = {8, 5};
  whole_experts.expert_tensor = {};
  const ExpandedRules vllm = Expanded(model, whole_experts);
  const EngineParameter& routed = Named(vllm, "model.layers.9.mlp.experts.routed_experts.w13_weight");
  CHECK(routed.shape == layout::Extents{16, 1536, 2048});
  CHECK(routed.slices[0] == Slice{"model.layers.9.mlp.experts.80.gate_proj.weight", {0, 0}, {768, 2048}, {0, 0, 0}});
}

TEST_CASE("DeepSeek-V3 at TP 8 has SGLang's shapes, and no MTP layer") {
  EnginePlace place = Tp("sglang", "deepseek_v3", 8, 7, 0);
  place.fused_shared_experts = true;
  const ExpandedRules rules = Expanded(DeepSeekV3(), place);
  const std::string layer = "model.layers.60.";
  CHECK(Named(rules, "model.embed_tokens.weight").shape == layout::Extents{16'160, 7168});
  CHECK(Named(rules, layer + "self_attn.fused_qkv_a_proj_with_mqa.weight").shape == layout::Extents{2112, 7168});
  CHECK(Named(rules, layer + "self_attn.q_b_proj.weight").shape == layout::Extents{3072, 1536});
  CHECK(Named(rules, layer + "self_attn.kv_b_proj.weight").shape == layout::Extents{4096, 512});
  CHECK(Named(rules, layer + "self_attn.o_proj.weight").shape == layout::Extents{7168, 2048});
  const EngineParameter& w13 = Named(rules, layer + "mlp.experts.w13_weight");
  CHECK(w13.shape == layout::Extents{257, 512, 7168});
  REQUIRE(w13.slices.size() == 514);  // the shared expert comes last
  CHECK(w13.slices[513] == Slice{layer + "mlp.shared_experts.up_proj.weight", {1792, 0}, {256, 7168}, {256, 256, 0}});
  CHECK(Named(rules, layer + "mlp.experts.w2_weight").shape == layout::Extents{257, 7168, 256});
  CHECK(Named(rules, layer + "mlp.gate.e_score_correction_bias").dtype == model::DType::kF32);
  CHECK(Named(rules, "model.layers.0.mlp.gate_up_proj.weight").shape == layout::Extents{4608, 7168});
  for (const EngineParameter& parameter : rules.parameters) {
    REQUIRE(parameter.name.find("shared_experts") == std::string::npos);
    REQUIRE(parameter.name.find("layers.61") == std::string::npos);
  }
  REQUIRE(rules.unused.size() == 256 * 3 + 3 + 2 + 7 + 2 + 4);
  for (const std::string& name : rules.unused) REQUIRE(name.starts_with("model.layers.61."));

  const ExpandedRules vllm = Expanded(DeepSeekV3(), Tp("vllm", "deepseek_v3", 8, 7, 0));
  CHECK(Named(vllm, layer + "self_attn.fused_qkv_a_proj.weight").shape == layout::Extents{2112, 7168});
  CHECK(Named(vllm, layer + "mlp.shared_experts.gate_up_proj.weight").shape == layout::Extents{512, 7168});
  CHECK(Named(vllm, layer + "mlp.experts.routed_experts.w13_weight").shape == layout::Extents{256, 512, 7168});
}

TEST_CASE("Experts that vLLM's ranks cannot share evenly go to the first ranks") {
  ModelShape model = TinyModel("qwen3_moe");
  model.experts = 6;
  uint64_t next = 0;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EnginePlace place{.engine = "vllm", .family = "qwen3_moe", .expert = {4, rank}};
    const ExpandedRules rules = Expanded(model, place);
    const EngineParameter& w2 = Named(rules, "model.layers.0.mlp.experts.routed_experts.w2_weight");
    REQUIRE(w2.slices.size() == (rank < 2 ? 2 : 1));
    CHECK(w2.shape[0] == w2.slices.size());
    for (const Slice& slice : w2.slices) {
      CHECK(slice.tensor == Cat("model.layers.0.mlp.experts.", next++, ".down_proj.weight"));
    }
  }
}

TEST_CASE("Of experts in one tensor a rank has a slice of gate, of up and of down, and the shared expert behind them") {
  std::vector<model::TensorMeta> tensors = TestTensors(TinyModel("deepseek_v3")).Make();
  std::erase_if(tensors,
                [](const model::TensorMeta& tensor) { return tensor.name.find(".experts.") != std::string::npos; });
  for (const char* layer : {"model.layers.1.", "model.layers.2.", "model.layers.3."}) {
    tensors.push_back({Cat(layer, "mlp.experts.gate_up_proj"), model::DType::kBF16, {4, 32, 32}});
    tensors.push_back({Cat(layer, "mlp.experts.down_proj"), model::DType::kBF16, {4, 32, 16}});
  }
  const auto layout = LayoutOf(std::move(tensors));
  REQUIRE(layout.ok());
  EnginePlace place{.engine = "sglang", .family = "deepseek_v3", .tensor = {4, 3}};
  place.expert = {2, 1};
  place.expert_tensor = {2, 1};
  place.fused_shared_experts = true;
  const Result<ExpandedRules> rules = ExpandRules(**layout, place);
  REQUIRE(rules.ok());
  const std::string mlp = "model.layers.2.mlp.";
  CHECK(Named(*rules, mlp + "experts.w13_weight").slices ==
        std::vector<Slice>{{mlp + "experts.gate_up_proj", {2, 8, 0}, {2, 8, 32}, {0, 0, 0}},
                           {mlp + "experts.gate_up_proj", {2, 24, 0}, {2, 8, 32}, {0, 8, 0}},
                           {mlp + "shared_experts.gate_proj.weight", {8, 0}, {8, 32}, {2, 0, 0}},
                           {mlp + "shared_experts.up_proj.weight", {8, 0}, {8, 32}, {2, 8, 0}}});
  CHECK(Named(*rules, mlp + "experts.w2_weight").slices ==
        std::vector<Slice>{{mlp + "experts.down_proj", {2, 0, 8}, {2, 32, 8}, {0, 0, 0}},
                           {mlp + "shared_experts.down_proj.weight", {0, 8}, {32, 8}, {2, 0, 0}}});
}

TEST_CASE("A vocabulary is padded to 64 rows, at its end") {
  ModelShape model = TinyModel("llama");
  model.vocabulary = 70;
  const ExpandedRules first = Expanded(model, Tp("vllm", "llama", 4, 2, 2));
  const EngineParameter& part = Named(first, "model.embed_tokens.weight");
  CHECK(part.shape == layout::Extents{32, 32});
  CHECK(part.slices == std::vector<Slice>{{"model.embed_tokens.weight", {64, 0}, {6, 32}, {0, 0}}});
  CHECK(part.padding == std::vector<Padding>{{{6, 0}, {26, 32}}});
  const ExpandedRules last = Expanded(model, Tp("sglang", "llama", 4, 3, 2));
  const EngineParameter& nothing = Named(last, "lm_head.weight");
  CHECK(nothing.slices.empty());
  CHECK(nothing.padding == std::vector<Padding>{{{0, 0}, {32, 32}}});
}

TEST_CASE("A padded vocabulary that ranks cannot share is padded further by SGLang and refused for vLLM") {
  ModelShape model = TinyModel("llama");
  model.heads = 6;
  model.key_value_heads = 3;
  model.vocabulary = 70;
  const ExpandedRules rules = Expanded(model, Tp("sglang", "llama", 3, 0, 3));
  CHECK(Named(rules, "model.embed_tokens.weight").shape == layout::Extents{64, 32});
  const ExpandedRules last = Expanded(model, Tp("sglang", "llama", 3, 1, 3));
  CHECK(Named(last, "model.embed_tokens.weight").slices ==
        std::vector<Slice>{{"model.embed_tokens.weight", {64, 0}, {6, 32}, {0, 0}}});
  CHECK_THAT(Refusal(model, Tp("vllm", "llama", 3, 0, 3)), FailsWith(ErrorCode::kBadData, "model.embed_tokens.weight",
                                                                     "128 padded rows, which 3 ranks cannot share"));
}

TEST_CASE("An engine or family without rules is not found, and the message says which there are") {
  const std::vector<model::TensorMeta> tensors = TestTensors(TinyModel("llama")).Make();
  for (const auto& [engine, family] : {std::pair{"sglang", "gpt2"}, {"tgi", "llama"}, {"huggingface", "llama"}}) {
    CHECK_THAT(Refusal(tensors, Tp(engine, family, 1, 0, 0)),
               FailsWith(ErrorCode::kNotFound, engine, family, KnownEngines()));
  }
  CHECK_THAT(KnownEngines(), Catch::Matchers::StartsWith("described, huggingface; sglang: deepseek_v3, "));
  for (const EngineRules* engine : {&kSglang, &kVllm}) {
    std::string listed = Cat("; ", engine->name);
    std::string_view before;
    for (const FamilyRules& family : engine->families) {
      CHECK(before < family.model_type);
      listed += Cat(before.empty() ? ": " : ", ", family.model_type);
      before = family.model_type;
    }
    CHECK_THAT(KnownEngines(), Catch::Contains(listed));
  }
}

TEST_CASE("A rank outside its group is refused") {
  const std::vector<model::TensorMeta> tensors = TestTensors(TinyModel("llama")).Make();
  CHECK_THAT(Refusal(tensors, Tp("vllm", "llama", 2, 2, 2)),
             FailsWith(ErrorCode::kBadData, "rank 2 of a group tensor of 2 ranks"));
  CHECK_THAT(Refusal(tensors, Tp("vllm", "llama", 0, 0, 2)), FailsWith(ErrorCode::kBadData, "group tensor of 0"));
  EnginePlace place = Tp("vllm", "llama", 1, 0, 2);
  place.expert = {8192, 1};
  CHECK_THAT(Refusal(tensors, place), FailsWith(ErrorCode::kBadData, "group expert of 8192"));
}

TEST_CASE("A tensor that no rule takes is named") {
  std::vector<model::TensorMeta> tensors = TestTensors(TinyModel("qwen2")).Make();
  tensors.push_back({"model.layers.1.self_attn.q_norm.weight", model::DType::kBF16, {4}});
  CHECK_THAT(Refusal(tensors, Tp("vllm", "qwen2", 1, 0, 0)),
             FailsWith(ErrorCode::kBadData,
                       "no rule of vllm's qwen2 takes tensor model.layers.1.self_attn.q_norm.weight of shape [4]"));
  ModelShape dense = TinyModel("qwen3_moe");
  dense.dense_layers = 1;
  CHECK_THAT(Refusal(dense, Tp("sglang", "qwen3_moe", 1, 0, 0)),
             FailsWith(ErrorCode::kBadData, "model.layers.0.mlp.gate_proj.weight"));
}

TEST_CASE("A tensor that a rule misses is named, with the parameter") {
  for (const char* name : {"model.layers.1.self_attn.v_proj.weight", "model.norm.weight",
                           "model.layers.0.mlp.experts.2.up_proj.weight", "model.layers.1.mlp.gate.weight"}) {
    std::vector<model::TensorMeta> tensors = TestTensors(TinyModel("qwen3_moe")).Make();
    std::erase_if(tensors, [&](const model::TensorMeta& tensor) { return tensor.name == name; });
    CHECK_THAT(Refusal(tensors, Tp("vllm", "qwen3_moe", 1, 0, 0)),
               FailsWith(ErrorCode::kBadData, Cat("the model has no tensor ", name), "vllm parameter model."));
  }
}

TEST_CASE("Layers that are missing, or decoder layers behind MTP layers, are refused") {
  std::vector<model::TensorMeta> tensors = TestTensors(TinyModel("llama")).Make();
  tensors.push_back({"model.layers.3.input_layernorm.weight", model::DType::kBF16, {32}});
  CHECK_THAT(Refusal(tensors, Tp("vllm", "llama", 1, 0, 0)),
             FailsWith(ErrorCode::kBadData, "has layer 3", "no layer 2"));
  tensors = TestTensors(TinyModel("deepseek_v3")).Make();
  tensors.push_back({"model.layers.4.input_layernorm.weight", model::DType::kBF16, {32}});
  CHECK_THAT(Refusal(tensors, Tp("vllm", "deepseek_v3", 1, 0, 0)),
             FailsWith(ErrorCode::kBadData, "layer 4", "behind layer 3"));
}

TEST_CASE("Sizes that ranks cannot share are refused, naming tensor and sizes") {
  ModelShape model = TinyModel("llama");
  model.ffn = 50;
  CHECK_THAT(Refusal(model, Tp("vllm", "llama", 4, 0, 2)),
             FailsWith(ErrorCode::kBadData, "mlp.gate_proj.weight", "[50, 32]", "4 ranks"));
  model = TinyModel("llama");
  model.heads = 6;
  model.key_value_heads = 6;
  CHECK_THAT(Refusal(model, Tp("vllm", "llama", 4, 0, 6)),
             FailsWith(ErrorCode::kBadData, "k_proj.weight", "6 key/value heads"));
  model.key_value_heads = 2;
  CHECK_THAT(Refusal(model, Tp("sglang", "llama", 4, 0, 2)),
             FailsWith(ErrorCode::kBadData, "q_proj.weight", "heads of 4 rows"));
  model.key_value_heads = 3;
  CHECK_THAT(Refusal(model, Tp("sglang", "llama", 4, 0, 3)), FailsWith(ErrorCode::kBadData, "cannot repeat evenly"));
  CHECK_THAT(Refusal(model, Tp("sglang", "llama", 2, 0, 5)),
             FailsWith(ErrorCode::kBadData, "does not have 5 key/value heads"));

  model = TinyModel("qwen3_moe");
  EnginePlace place = Tp("sglang", "qwen3_moe", 1, 0, 2);
  place.expert = {3, 0};
  CHECK_THAT(Refusal(model, place), FailsWith(ErrorCode::kBadData, "4 experts", "3 ranks", "w13_weight"));
  place.expert = {};
  place.expert_tensor = {3, 0};
  CHECK_THAT(Refusal(model, place), FailsWith(ErrorCode::kBadData, "experts.0.gate_proj.weight", "experts of 16 rows"));
}

TEST_CASE("Tensors of one parameter must be of one type and fit together") {
  std::vector<model::TensorMeta> tensors = TestTensors(TinyModel("deepseek_v3")).Make();
  const EnginePlace place = Tp("vllm", "deepseek_v3", 1, 0, 0);
  Find(tensors, "model.layers.2.mlp.experts.3.down_proj.weight").dtype = model::DType::kF16;
  CHECK_THAT(Refusal(tensors, place), FailsWith(ErrorCode::kBadData, "experts.3.down_proj.weight", "another type"));
  tensors = TestTensors(TinyModel("deepseek_v3")).Make();
  Find(tensors, "model.layers.2.mlp.experts.1.up_proj.weight").shape = {8, 32};
  CHECK_THAT(Refusal(tensors, place), FailsWith(ErrorCode::kBadData, "experts.1.up_proj.weight of shape [8, 32]"));
  tensors = TestTensors(TinyModel("deepseek_v3")).Make();
  Find(tensors, "model.layers.0.mlp.up_proj.weight").shape = {24, 32};
  CHECK_THAT(Refusal(tensors, place), FailsWith(ErrorCode::kBadData, "mlp.up_proj.weight", "not of the shape of"));
  tensors = TestTensors(TinyModel("deepseek_v3")).Make();
  Find(tensors, "model.layers.1.self_attn.kv_a_proj_with_mqa.weight").shape = {12, 30};
  CHECK_THAT(Refusal(tensors, place),
             FailsWith(ErrorCode::kBadData, "kv_a_proj_with_mqa.weight", "does not fit below"));
  tensors = TestTensors(TinyModel("llama")).Make();
  Find(tensors, "model.layers.1.self_attn.o_proj.weight").shape = {32, 8, 4};
  CHECK_THAT(Refusal(tensors, Tp("vllm", "llama", 1, 0, 0)),
             FailsWith(ErrorCode::kBadData, "should have 2 dimensions"));
}

TEST_CASE("A packed type is refused") {
  std::vector<model::TensorMeta> tensors = TestTensors(TinyModel("llama")).Make();
  Find(tensors, "model.layers.1.mlp.down_proj.weight").dtype = model::DType::kF4;
  CHECK_THAT(Refusal(tensors, Tp("vllm", "llama", 1, 0, 0)),
             FailsWith(ErrorCode::kBadData, "model.layers.1.mlp.down_proj.weight", "packed type"));
}

TEST_CASE("Fused shared experts are refused where the engine never has them or they are not of an expert's size") {
  EnginePlace place = Tp("vllm", "deepseek_v3", 1, 0, 0);
  place.fused_shared_experts = true;
  CHECK_THAT(Refusal(TinyModel("deepseek_v3"), place), FailsWith(ErrorCode::kBadData, "vllm never fuses"));
  place = Tp("sglang", "qwen2_moe", 1, 0, 0);
  place.fused_shared_experts = true;
  CHECK_THAT(Refusal(TinyModel("qwen2_moe"), place), FailsWith(ErrorCode::kBadData, "sglang never fuses"));
  ModelShape two = TinyModel("deepseek_v3");
  two.shared_ffn *= 2;
  place.family = "deepseek_v3";
  CHECK_THAT(Refusal(two, place),
             FailsWith(ErrorCode::kBadData, "mlp.shared_experts.gate_proj.weight of shape [32, 32]"));
}

}  // namespace
}  // namespace lockstep::placement

// What the rules make of a configuration: element types, offsets, buckets, conversions, limits.
#include <algorithm>
#include <map>

#include "common/base/status_testing.h"
#include "export_plugin/rules/rules_testing.h"

namespace lockstep::rules {
namespace {

std::map<std::string, uint32_t> GroupsByName(const layout::TrainingModel& model) {
  std::map<std::string, uint32_t> groups;
  for (size_t i = 0; i < model.tensors.size(); ++i) groups[model.tensors[i].name] = model.groups[i];
  return groups;
}

TEST_CASE("Tensors have the model's type, router biases stay fp32") {
  nlohmann::json config = TinyConfig("deepseek_v3");
  config["torch_dtype"] = config["dtype"];
  config.erase("dtype");
  const MegatronRules rules = RulesOf(config);
  for (const model::TensorMeta& tensor : rules.model().tensors) {
    const bool bias = tensor.name.find("e_score_correction_bias") != std::string::npos;
    CHECK(tensor.dtype == (bias ? model::DType::kF32 : model::DType::kBF16));
  }
}

TEST_CASE("A router bias that would be misaligned comes first, and conversions follow it") {
  nlohmann::json config = TinyConfig("deepseek_v3");
  config["kv_lora_rank"] = 6;  // three layers of norms of 5 and 6 lie before the second bias
  const MegatronRules rules = RulesOf(config);
  const layout::TrainingModel& model = rules.model();
  CHECK(model.tensors[0].name == "model.layers.1.mlp.gate.e_score_correction_bias");
  CHECK(model.tensors[0].offset == 0);
  CHECK(model.tensors[1].name == "model.layers.2.mlp.gate.e_score_correction_bias");
  CHECK(model.tensors[2].name == "model.embed_tokens.weight");
  CHECK(model.tensors[2].offset == 16);
  for (const layout::Conversion& conversion : model.conversions) {
    const std::string& source = model.sources[conversion.source].name;
    if (source == "decoder.layers.1.mlp.router.expert_bias") CHECK(conversion.tensor == 0);
    if (source == "embedding.word_embeddings.weight") CHECK(conversion.tensor == 2);
  }
  auto groups = GroupsByName(model);
  for (const char* layer : {"model.layers.0.", "model.layers.2."}) {
    const uint32_t group = groups[std::string(layer) + "self_attn.q_a_proj.weight"];
    CHECK(groups[std::string(layer) + "self_attn.kv_a_proj_with_mqa.weight"] == group);
    CHECK(std::count(model.groups.begin(), model.groups.end(), group) == 2);
  }
}

TEST_CASE("What engines fuse shares a bucket, and nothing else does") {
  auto groups = GroupsByName(RulesOf(TinyConfig("qwen2")).model());
  const std::string layer = "model.layers.0.";
  CHECK(groups[layer + "self_attn.q_proj.weight"] == groups[layer + "self_attn.k_proj.weight"]);
  CHECK(groups[layer + "self_attn.q_proj.weight"] == groups[layer + "self_attn.v_proj.weight"]);
  CHECK(groups[layer + "self_attn.q_proj.bias"] == groups[layer + "self_attn.v_proj.bias"]);
  CHECK(groups[layer + "self_attn.q_proj.bias"] != groups[layer + "self_attn.v_proj.weight"]);
  CHECK(groups[layer + "mlp.gate_proj.weight"] == groups[layer + "mlp.up_proj.weight"]);
  CHECK(groups[layer + "mlp.gate_proj.weight"] != groups[layer + "mlp.down_proj.weight"]);
  CHECK(groups[layer + "mlp.gate_proj.weight"] != groups["model.layers.1.mlp.gate_proj.weight"]);

  groups = GroupsByName(RulesOf(TinyConfig("deepseek_v3")).model());
  CHECK(groups[layer + "self_attn.q_a_proj.weight"] == groups[layer + "self_attn.kv_a_proj_with_mqa.weight"]);
  CHECK(groups[layer + "self_attn.q_a_proj.weight"] != groups[layer + "self_attn.q_a_layernorm.weight"]);
  nlohmann::json moonlight = TinyConfig("deepseek_v3");
  moonlight["q_lora_rank"] = nullptr;
  groups = GroupsByName(RulesOf(moonlight).model());
  CHECK(groups[layer + "self_attn.q_proj.weight"] != groups[layer + "self_attn.kv_a_proj_with_mqa.weight"]);
}

TEST_CASE("Sources have names that are the same on every rank, and whole shapes") {
  std::map<std::string, layout::Extents> shapes;
  const MegatronRules rules = RulesOf(TinyConfig("glm4_moe"));
  for (const layout::SourceTensor& source : rules.model().sources) shapes[source.name] = source.shape;
  CHECK(shapes.size() == rules.model().sources.size());
  CHECK(shapes["embedding.word_embeddings.weight"] == layout::Extents{11, 8});
  CHECK(shapes["decoder.layers.1.self_attention.linear_qkv.weight"] == layout::Extents{24, 8});
  CHECK(shapes["decoder.layers.1.mlp.experts.linear_fc1.weight1"] == layout::Extents{12, 8});
  CHECK(shapes["mtp.layers.0.eh_proj.weight"] == layout::Extents{8, 16});
  CHECK(shapes["mtp.layers.0.transformer_layer.mlp.router.expert_bias"] == layout::Extents{2});
}

TEST_CASE("Real sizes: the parameters of known models") {
  nlohmann::json qwen3 = {{"model_type", "qwen3"},      {"dtype", "bfloat16"},  {"num_hidden_layers", 28},
                          {"hidden_size", 1024},        {"vocab_size", 151936}, {"num_attention_heads", 16},
                          {"num_key_value_heads", 8},   {"head_dim", 128},      {"intermediate_size", 3072},
                          {"tie_word_embeddings", true}};
  const auto elements = [](const MegatronRules& rules) {
    uint64_t count = 0;
    for (const model::TensorMeta& tensor : rules.model().tensors) count += layout::ElementCount(tensor.shape);
    return count;
  };
  CHECK(elements(RulesOf(qwen3)) == 596'049'920);  // Qwen3-0.6B
  nlohmann::json moe = qwen3;
  moe.update({{"model_type", "qwen3_moe"},
              {"num_hidden_layers", 48},
              {"hidden_size", 2048},
              {"num_attention_heads", 32},
              {"num_key_value_heads", 4},
              {"num_experts", 128},
              {"moe_intermediate_size", 768},
              {"tie_word_embeddings", false}});
  CHECK(elements(RulesOf(moe)) == 30'532'122'624);  // Qwen3-30B-A3B
  nlohmann::json deepseek = TinyConfig("deepseek_v3");
  deepseek.update({{"num_hidden_layers", 61},
                   {"hidden_size", 7168},
                   {"vocab_size", 129280},
                   {"num_attention_heads", 128},
                   {"intermediate_size", 18432},
                   {"moe_intermediate_size", 2048},
                   {"n_routed_experts", 256},
                   {"first_k_dense_replace", 3},
                   {"num_nextn_predict_layers", 0},
                   {"q_lora_rank", 1536},
                   {"kv_lora_rank", 512},
                   {"qk_nope_head_dim", 128},
                   {"qk_rope_head_dim", 64},
                   {"v_head_dim", 128}});
  CHECK(elements(RulesOf(deepseek)) == 671'026'419'200);  // DeepSeek-V3
}

TEST_CASE("A model of more tensors than a layout may have is refused before it is built") {
  nlohmann::json config = TinyConfig("mixtral");
  config["num_hidden_layers"] = 10'000;
  config["num_local_experts"] = 65'536;
  const auto rules = MegatronRules::Create(Parsed(config));
  CHECK_THAT(rules, FailsWith(ErrorCode::kBadData, "1966150000 tensors are more than 1000000"));
}

TEST_CASE("A configuration filled by hand is checked like a file") {
  ModelConfig config = Parsed(TinyConfig("llama"));
  config.moe_layers.clear();
  CHECK_THAT(MegatronRules::Create(config), FailsWith(ErrorCode::kBadData, "moe_layers describes 0 layers of 2"));
  config = Parsed(TinyConfig("llama"));
  config.mtp_layers = 1;
  CHECK_THAT(MegatronRules::Create(config), FailsWith(ErrorCode::kBadData, "num_nextn_predict_layers of llama"));
  config = Parsed(TinyConfig("llama"));
  config.hidden = kMaxExtent + 1;
  CHECK_THAT(MegatronRules::Create(config), FailsWith(ErrorCode::kBadData, "hidden is 4294967297"));
  config.model_type = "gpt5";
  CHECK_THAT(MegatronRules::Create(config), FailsWith(ErrorCode::kBadData, "model_type 'gpt5'"));
}

TEST_CASE("A tensor larger than a model may be is refused by name") {
  nlohmann::json config = TinyConfig("llama");
  config["vocab_size"] = uint64_t{1} << 32;
  config["hidden_size"] = uint64_t{1} << 32;
  CHECK_THAT(MegatronRules::Create(Parsed(config)), FailsWith(ErrorCode::kBadData, "model.embed_tokens.weight"));
}

}  // namespace
}  // namespace lockstep::rules

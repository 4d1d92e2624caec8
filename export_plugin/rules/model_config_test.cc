#include "export_plugin/rules/model_config.h"

#include "common/base/status_testing.h"
#include "export_plugin/rules/rules_testing.h"

namespace lockstep::rules {
namespace {

Status Refusal(const nlohmann::json& config) {
  return ParseModelConfig(config.dump()).status();
}

nlohmann::json With(const std::string& family, const std::string& key, const nlohmann::json& value) {
  nlohmann::json config = TinyConfig(family);
  config[key] = value;
  return config;
}

nlohmann::json Without(const std::string& family, const std::string& key) {
  nlohmann::json config = TinyConfig(family);
  config.erase(key);
  return config;
}

TEST_CASE("A configuration's sizes are read") {
  const ModelConfig config = Parsed(TinyConfig("deepseek_v3"));
  CHECK(config.layers == 2);
  CHECK(config.mtp_layers == 1);
  CHECK(config.hidden == 8);
  CHECK(config.vocabulary == 11);
  CHECK(config.heads == 4);
  CHECK(config.groups == 4);
  CHECK(config.experts == 2);
  CHECK(config.expert_ffn == 6);
  CHECK(config.shared_ffn == 6);
  CHECK(config.router_bias);
  CHECK(config.moe_layers == std::vector<bool>{false, true});
  CHECK(config.q_rank == 5);
  CHECK(config.kv_rank == 7);
  CHECK(config.qk_nope_dim == 2);
  CHECK(config.qk_rope_dim == 1);
  CHECK(config.v_dim == 3);
}

TEST_CASE("Both names of the element type are read, and one of them must be there") {
  CHECK(Parsed(With("llama", "dtype", "float16")).dtype == model::DType::kF16);
  nlohmann::json old = Without("llama", "dtype");
  CHECK_THAT(Refusal(old), FailsWith(ErrorCode::kBadData, "dtype or torch_dtype is missing"));
  old["torch_dtype"] = "float32";
  CHECK(Parsed(old).dtype == model::DType::kF32);
  CHECK_THAT(Refusal(With("llama", "dtype", "float8_e4m3fn")),
             FailsWith(ErrorCode::kBadData, "must be bfloat16, float16 or float32"));
}

TEST_CASE("What a family leaves out has the family's default") {
  CHECK(Parsed(Without("llama", "head_dim")).head_dim == 2);
  CHECK(Parsed(With("mixtral", "head_dim", nullptr)).head_dim == 2);
  CHECK(Parsed(Without("qwen3", "head_dim")).head_dim == 128);
  CHECK(Parsed(Without("llama", "num_key_value_heads")).groups == 4);
  CHECK_FALSE(Parsed(Without("llama", "tie_word_embeddings")).tied_embeddings);
  CHECK(Parsed(Without("deepseek_v3", "num_nextn_predict_layers")).mtp_layers == 0);
  CHECK(Parsed(Without("deepseek_v3", "n_shared_experts")).shared_ffn == 0);
  CHECK(Parsed(Without("glm4", "attention_bias")).qkv_bias);
  CHECK_FALSE(Parsed(Without("glm4_moe", "attention_bias")).qkv_bias);
  CHECK_FALSE(Parsed(TinyConfig("glm4_moe")).qk_norm);
  CHECK(Parsed(TinyConfig("qwen2_moe")).qkv_bias);
  CHECK_FALSE(Parsed(With("qwen2_moe", "qkv_bias", false)).qkv_bias);
}

TEST_CASE("Experts are counted under any of their three names") {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    nlohmann::json config = Without("qwen3_moe", "num_experts");
    config[key] = 6;
    CHECK(Parsed(config).experts == 6);
  }
  CHECK_THAT(Refusal(Without("qwen3_moe", "num_experts")),
             FailsWith(ErrorCode::kBadData, "n_routed_experts or num_experts or num_local_experts is missing"));
}

TEST_CASE("Which layers have experts follows the family's own keys") {
  nlohmann::json stepped = TinyConfig("qwen3_moe");
  stepped.update({{"num_hidden_layers", 6}, {"decoder_sparse_step", 2}, {"mlp_only_layers", {3, 77}}});
  CHECK(Parsed(stepped).moe_layers == std::vector<bool>{false, true, false, false, false, true});
  nlohmann::json first = TinyConfig("deepseek_v3");
  first.update({{"num_hidden_layers", 6}, {"first_k_dense_replace", 2}});
  CHECK(Parsed(first).moe_layers == std::vector<bool>{false, false, true, true, true, true});
  first["moe_layer_freq"] = 2;
  CHECK(Parsed(first).moe_layers == std::vector<bool>{false, false, true, false, true, false});
  CHECK(Parsed(TinyConfig("mixtral")).moe_layers == std::vector<bool>{true, true});
  CHECK(Parsed(TinyConfig("qwen2")).moe_layers == std::vector<bool>{false, false});
}

TEST_CASE("A dense MLP's size is asked for only where there is one") {
  CHECK(Parsed(Without("qwen3_moe", "intermediate_size")).ffn == 0);
  CHECK_THAT(Refusal(Without("deepseek_v3", "intermediate_size")),
             FailsWith(ErrorCode::kBadData, "intermediate_size is missing"));
}

TEST_CASE("What is no rule's business is refused by name") {
  CHECK_THAT(Refusal(With("llama", "model_type", "mamba")),
             FailsWith(ErrorCode::kBadData, "model_type 'mamba'", "qwen3_moe"));
  CHECK_THAT(Refusal(With("qwen2", "quantization_config", {{"quant_method", "fp8"}})),
             FailsWith(ErrorCode::kBadData, "quantization_config describes quantised weights"));
  nlohmann::json multimodal = {{"model_type", "qwen2_5_vl"}, {"text_config", TinyConfig("qwen2")}};
  CHECK_THAT(Refusal(multimodal), FailsWith(ErrorCode::kBadData, "text_config describes a multimodal model"));
  CHECK_THAT(Refusal(With("qwen2", "is_encoder_decoder", true)), FailsWith(ErrorCode::kBadData, "is_encoder_decoder"));
  CHECK_THAT(Refusal(With("llama", "attention_bias", true)), FailsWith(ErrorCode::kBadData, "attention_bias is set"));
  CHECK_THAT(Refusal(With("llama", "mlp_bias", true)), FailsWith(ErrorCode::kBadData, "mlp_bias is set"));
  CHECK_THAT(Refusal(With("deepseek_v3", "attention_bias", true)),
             FailsWith(ErrorCode::kBadData, "attention_bias is set"));
  CHECK_THAT(Refusal(With("qwen3", "num_nextn_predict_layers", 1)),
             FailsWith(ErrorCode::kBadData, "num_nextn_predict_layers of qwen3"));
}

TEST_CASE("Wrong types and numbers are refused by key") {
  CHECK_THAT(Refusal(With("llama", "hidden_size", "8")),
             FailsWith(ErrorCode::kBadData, "hidden_size must be a whole number"));
  CHECK_THAT(Refusal(With("llama", "hidden_size", 8.0)),
             FailsWith(ErrorCode::kBadData, "hidden_size must be a whole number"));
  CHECK_THAT(Refusal(With("llama", "hidden_size", -8)),
             FailsWith(ErrorCode::kBadData, "hidden_size must be a whole number"));
  CHECK_THAT(Refusal(With("llama", "hidden_size", 0)), FailsWith(ErrorCode::kBadData, "from 1 to 4294967296"));
  CHECK_THAT(Refusal(With("llama", "num_hidden_layers", 10'001)), FailsWith(ErrorCode::kBadData, "num_hidden_layers"));
  CHECK_THAT(Refusal(With("mixtral", "num_local_experts", 65'537)),
             FailsWith(ErrorCode::kBadData, "num_local_experts"));
  CHECK_THAT(Refusal(With("llama", "vocab_size", nullptr)), FailsWith(ErrorCode::kBadData, "vocab_size is missing"));
  CHECK_THAT(Refusal(With("llama", "tie_word_embeddings", 1)),
             FailsWith(ErrorCode::kBadData, "tie_word_embeddings must be true or false"));
  CHECK_THAT(Refusal(With("llama", "model_type", 7)), FailsWith(ErrorCode::kBadData, "model_type must be a string"));
  CHECK_THAT(Refusal(With("qwen3_moe", "mlp_only_layers", 3)),
             FailsWith(ErrorCode::kBadData, "mlp_only_layers must be an array"));
  CHECK_THAT(Refusal(With("qwen3_moe", "mlp_only_layers", {1, "2"})),
             FailsWith(ErrorCode::kBadData, "mlp_only_layers must hold"));
  CHECK_THAT(Refusal(With("deepseek_v3", "moe_layer_freq", {0, 1})), FailsWith(ErrorCode::kBadData, "moe_layer_freq"));
}

TEST_CASE("Sizes that contradict one another are refused") {
  CHECK_THAT(Refusal(With("llama", "num_key_value_heads", 3)),
             FailsWith(ErrorCode::kBadData, "4 heads do not divide into 3 groups"));
  CHECK_THAT(Refusal(With("llama", "num_key_value_heads", 8)), FailsWith(ErrorCode::kBadData, "groups is 8"));
  nlohmann::json config = Without("llama", "head_dim");
  config["hidden_size"] = 9;
  CHECK_THAT(Refusal(config), FailsWith(ErrorCode::kBadData, "head_dim is missing"));
}

TEST_CASE("What is no JSON object is refused") {
  CHECK_THAT(ParseModelConfig(""), FailsWith(ErrorCode::kBadData, "not a JSON object"));
  CHECK_THAT(ParseModelConfig("[1]"), FailsWith(ErrorCode::kBadData, "not a JSON object"));
  CHECK_THAT(ParseModelConfig("{\"model_type\": "), FailsWith(ErrorCode::kBadData, "not a JSON object"));
  CHECK_THAT(ParseModelConfig(std::string(1 << 20, '[') + "1"), FailsWith(ErrorCode::kBadData, "larger than 1 MiB"));
  CHECK_THAT(ParseModelConfig(std::string(100'000, '[')), FailsWith(ErrorCode::kBadData, "not a JSON object"));
}

}  // namespace
}  // namespace lockstep::rules

// What the tests of the rules share: tiny config.json files and shorthands.
#pragma once

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "export_plugin/rules/megatron.h"

namespace lockstep::rules {

// A tiny model of the family as transformers would save it: 2 layers, hidden 8, 4 heads in 2 groups of head_dim 3, ffn
// 10, vocabulary 11; 2 experts of ffn 6; deepseek_v3 and glm4_moe have a dense first layer and 1 MTP layer.
inline nlohmann::json TinyConfig(const std::string& family) {
  nlohmann::json config = {{"model_type", family},     {"dtype", "bfloat16"},  {"num_hidden_layers", 2},
                           {"hidden_size", 8},         {"vocab_size", 11},     {"num_attention_heads", 4},
                           {"num_key_value_heads", 2}, {"head_dim", 3},        {"intermediate_size", 10},
                           {"rms_norm_eps", 1e-6},     {"hidden_act", "silu"}, {"tie_word_embeddings", false}};
  const auto with = [&](const nlohmann::json& more) { config.update(more); };
  if (family == "mixtral") with({{"num_local_experts", 2}, {"intermediate_size", 6}});
  if (family == "qwen3_moe") with({{"num_experts", 2}, {"moe_intermediate_size", 6}, {"decoder_sparse_step", 1}});
  if (family == "qwen2_moe") {
    with({{"num_experts", 2}, {"moe_intermediate_size", 6}, {"shared_expert_intermediate_size", 14}});
  }
  if (family == "glm4" || family == "glm4_moe") with({{"attention_bias", true}});
  if (family == "deepseek_v3" || family == "glm4_moe") {
    with({{"n_routed_experts", 2},
          {"n_shared_experts", 1},
          {"moe_intermediate_size", 6},
          {"first_k_dense_replace", 1},
          {"num_nextn_predict_layers", 1}});
  }
  if (family == "deepseek_v3") {
    with(
        {{"q_lora_rank", 5}, {"kv_lora_rank", 7}, {"qk_nope_head_dim", 2}, {"qk_rope_head_dim", 1}, {"v_head_dim", 3}});
  }
  return config;
}

inline ModelConfig Parsed(const nlohmann::json& config) {
  auto parsed = ParseModelConfig(config.dump());
  INFO(parsed.status().ToString());
  REQUIRE(parsed.ok());
  return *parsed;
}

inline MegatronRules RulesOf(const nlohmann::json& config) {
  auto rules = MegatronRules::Create(Parsed(config));
  INFO(rules.status().ToString());
  REQUIRE(rules.ok());
  return *std::move(rules);
}

inline std::string Line(const std::string& name, const layout::Extents& shape) {
  std::string line = name;
  for (const uint64_t extent : shape) line += " " + std::to_string(extent);
  return line;
}

inline std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end != 0) lines.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return lines;
}

}  // namespace lockstep::rules

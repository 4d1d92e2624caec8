// The models of the benchmarks: configurations of real ones, their HuggingFace layouts, and what an engine's ranks hold
// of a Qwen3. Nothing is allocated but names and shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "common/model/layout.h"
#include "raas_receiver/engine/placement/description/description.h"

namespace lockstep::bench {

inline constexpr char kQwen3_30B_A3B[] = R"({"model_type": "qwen3_moe", "torch_dtype": "bfloat16",
  "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "tie_word_embeddings": false})";

inline constexpr char kDeepSeekV3[] = R"({"model_type": "deepseek_v3", "torch_dtype": "bfloat16",
  "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "hidden_size": 7168, "num_attention_heads": 128,
  "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
  "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
  "moe_layer_freq": 1, "vocab_size": 129280, "tie_word_embeddings": false})";

// The tensors that transformers saves of a model with this config.json.
std::vector<model::TensorMeta> TensorsOf(std::string_view config);

std::shared_ptr<const model::ModelLayout> LayoutOf(std::string_view config);

// A dense Qwen3 of about `bytes` in bf16, tied; with 3.04e9 it has 1.52 G elements in 24 layers.
std::shared_ptr<const model::ModelLayout> QwenLayout(uint64_t bytes);

// What tensor-parallel ranks of an engine say of a Qwen3, dense or a mixture: q, k and v fused, gate and up fused,
// experts stacked. REQUIRES every dimension that is cut to be a multiple of `ranks`, heads of keys and values aside.
std::vector<engine::RankDescription> QwenRanks(const model::ModelLayout& layout, uint32_t ranks);

}  // namespace lockstep::bench

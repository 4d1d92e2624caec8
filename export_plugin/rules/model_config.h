// ModelConfig: what of a HuggingFace config.json decides the shapes of a model's tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/dtype.h"

namespace lockstep::rules {

// No size in a configuration, and no dimension of a training tensor, is larger.
inline constexpr uint64_t kMaxExtent = uint64_t{1} << 32;
inline constexpr uint64_t kMaxLayers = 10'000;
inline constexpr uint64_t kMaxExperts = 65'536;
inline constexpr uint64_t kMaxHeads = uint64_t{1} << 20;  // also of the dimensions of a head

struct ModelConfig {
  std::string model_type;  // "qwen3_moe"
  model::DType dtype = model::DType::kBF16;
  uint64_t layers = 0;  // decoder layers, without MTP
  uint64_t mtp_layers = 0;
  uint64_t hidden = 0;
  uint64_t vocabulary = 0;
  uint64_t heads = 0;
  uint64_t groups = 0;  // key/value heads
  uint64_t head_dim = 0;
  uint64_t ffn = 0;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  // Mixture of experts; 0 experts: dense.
  uint64_t experts = 0;
  uint64_t expert_ffn = 0;
  uint64_t shared_ffn = 0;       // of all shared experts together; 0: none
  bool router_bias = false;      // e_score_correction_bias
  std::vector<bool> moe_layers;  // of each decoder layer
  // Multi-head latent attention; 0 kv_rank: none.
  uint64_t q_rank = 0;  // 0: no low rank for queries
  uint64_t kv_rank = 0;
  uint64_t qk_nope_dim = 0;
  uint64_t qk_rope_dim = 0;
  uint64_t v_dim = 0;
};

// The model_types that have a family's table.
std::vector<std::string_view> KnownFamilies();

// From the text of a config.json. kBadData names the key: missing, of another type, out of range, contradicting
// another, or describing what no rule covers (a family without a table, quantised weights, an encoder next to the
// decoder).
Result<ModelConfig> ParseModelConfig(std::string_view config_json);

// The limits above, and what the family's rules need of a ModelConfig that was filled by hand. kBadData names the
// field.
Status CheckModelConfig(const ModelConfig& config);

}  // namespace lockstep::rules

#include "export_plugin/rules/model_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/text.h"
#include "export_plugin/rules/family.h"
#include "export_plugin/rules/json_keys.h"

namespace lockstep::rules {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

Status Bad(std::string message) {
  return Status(ErrorCode::kBadData, std::move(message));
}

Status UnknownFamily(std::string_view model_type) {
  std::string known;
  for (const std::string_view family : KnownFamilies()) known += Cat(known.empty() ? "" : ", ", family);
  return Bad(Cat("config.json: no family table for model_type '", CleanText(model_type, 64), "'; there are ", known,
                 "; any other is published by its bridge (docs/howto/trainers.md)"));
}

// What makes a model something other than a decoder of plain tensors.
void RefuseForeignParts(JsonKeys& keys) {
  for (const std::string_view nested : {"text_config", "vision_config", "audio_config"}) {
    if (keys.Has(nested)) keys.Refuse(nested, "describes a multimodal model, which no rule covers");
  }
  if (keys.BoolOr("is_encoder_decoder", false)) keys.Refuse("is_encoder_decoder", "is set: no rule covers an encoder");
  if (keys.Has("quantization_config")) {
    keys.Refuse("quantization_config",
                "describes quantised weights; give the configuration of what the trainer holds, without it");
  }
}

void RefuseFlags(JsonKeys& keys, const Family& family) {
  for (std::string_view flags = family.refused_flags; !flags.empty();) {
    const std::string_view flag = NextPart(flags);
    if (keys.BoolOr(flag, false))
      keys.Refuse(flag, Cat("is set: no rule of ", family.model_type, " covers its biases"));
  }
}

model::DType ReadDType(JsonKeys& keys) {
  constexpr std::string_view kKeys = "dtype|torch_dtype";
  const std::string name = keys.Text(kKeys);
  if (name == "bfloat16") return model::DType::kBF16;
  if (name == "float16") return model::DType::kF16;
  if (name == "float32") return model::DType::kF32;
  keys.Refuse(kKeys, "must be bfloat16, float16 or float32");
  return model::DType::kBF16;
}

bool ReadFlag(JsonKeys& keys, ConfigFlag flag) {
  return flag.key.empty() ? flag.otherwise : keys.BoolOr(flag.key, flag.otherwise);
}

void ReadLatentAttention(JsonKeys& keys, ModelConfig& config) {
  config.q_rank = keys.NumberOr("q_lora_rank", 0, 1, kMaxHeads);
  config.kv_rank = keys.Number("kv_lora_rank", 1, kMaxHeads);
  config.qk_nope_dim = keys.Number("qk_nope_head_dim", 1, kMaxHeads);
  config.qk_rope_dim = keys.Number("qk_rope_head_dim", 1, kMaxHeads);
  config.v_dim = keys.Number("v_head_dim", 1, kMaxHeads);
}

void ReadAttention(JsonKeys& keys, const Family& family, ModelConfig& config) {
  config.heads = keys.Number("num_attention_heads", 1, kMaxHeads);
  if (family.mla) {
    config.groups = config.heads;
    return ReadLatentAttention(keys, config);
  }
  config.groups = family.default_groups ? keys.NumberOr("num_key_value_heads", config.heads, 1, kMaxHeads)
                                        : keys.Number("num_key_value_heads", 1, kMaxHeads);
  if (keys.Has("head_dim") || family.default_head_dim > 0) {
    config.head_dim = keys.NumberOr("head_dim", family.default_head_dim, 1, kMaxHeads);
  } else {
    if (config.hidden % config.heads != 0) keys.Refuse("head_dim", "is missing, and hidden_size / heads is not whole");
    config.head_dim = std::min(config.hidden / config.heads, kMaxHeads);
  }
  config.qkv_bias = ReadFlag(keys, family.qkv_bias);
  config.qk_norm = ReadFlag(keys, family.qk_norm);
}

std::vector<bool> SteppedLayers(JsonKeys& keys, uint64_t layers) {
  const uint64_t step = keys.NumberOr("decoder_sparse_step", 1, 1, kMaxLayers);
  const std::vector<uint64_t> dense = keys.Numbers("mlp_only_layers", kMaxLayers);
  std::vector<bool> moe(layers);
  for (uint64_t layer = 0; layer < layers; ++layer) moe[layer] = (layer + 1) % step == 0;
  for (const uint64_t layer : dense) {
    if (layer < layers) moe[layer] = false;
  }
  return moe;
}

std::vector<bool> MoeLayers(JsonKeys& keys, SparseLayers sparse, uint64_t layers) {
  if (sparse == SparseLayers::kStep) return SteppedLayers(keys, layers);
  std::vector<bool> moe(layers, true);
  if (sparse == SparseLayers::kEvery) return moe;
  const uint64_t first = keys.Number("first_k_dense_replace", 0, kMaxLayers);
  const uint64_t step = keys.NumberOr("moe_layer_freq", 1, 1, kMaxLayers);
  for (uint64_t layer = 0; layer < layers; ++layer) moe[layer] = layer >= first && layer % step == 0;
  return moe;
}

void ReadExperts(JsonKeys& keys, const Family& family, ModelConfig& config) {
  config.moe_layers.assign(config.layers, false);
  if (family.sparse == SparseLayers::kNone) return;
  config.experts = keys.Number("n_routed_experts|num_experts|num_local_experts", 1, kMaxExperts);
  config.expert_ffn = keys.Number(family.expert_ffn_key, 1, kMaxExtent);
  config.moe_layers = MoeLayers(keys, family.sparse, config.layers);
  config.router_bias = family.router_bias;
  if (family.shared == SharedExperts::kOwnSize) {
    config.shared_ffn = keys.NumberOr("shared_expert_intermediate_size", 0, 0, kMaxExtent);
  } else if (family.shared == SharedExperts::kCount) {
    config.shared_ffn = keys.NumberOr("n_shared_experts", 0, 0, kMaxExperts) * config.expert_ffn;
  }
}

ModelConfig Read(JsonKeys& keys, const Family& family) {
  ModelConfig config{.model_type = std::string(family.model_type), .dtype = ReadDType(keys)};
  config.layers = keys.Number("num_hidden_layers", 1, kMaxLayers);
  config.mtp_layers = keys.NumberOr("num_nextn_predict_layers", 0, 0, kMaxLayers);
  config.hidden = keys.Number("hidden_size", 1, kMaxExtent);
  config.vocabulary = keys.Number("vocab_size", 1, kMaxExtent);
  config.tied_embeddings = keys.BoolOr("tie_word_embeddings", false);
  ReadAttention(keys, family, config);
  ReadExperts(keys, family, config);
  const bool dense = std::count(config.moe_layers.begin(), config.moe_layers.end(), false) > 0;
  if (dense) config.ffn = keys.Number("intermediate_size", 1, kMaxExtent);
  return config;
}

Status CheckRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return Bad(Cat("model configuration: ", field, " is ", value, ", not from ", low, " to ", high));
}

Status CheckHeads(const ModelConfig& config, bool mla) {
  LS_RETURN_IF_ERROR(CheckRange("heads", config.heads, 1, kMaxHeads));
  LS_RETURN_IF_ERROR(CheckRange("groups", config.groups, 1, config.heads));
  if (config.heads % config.groups != 0) {
    return Bad(Cat("model configuration: ", config.heads, " heads do not divide into ", config.groups,
                   " groups (num_key_value_heads)"));
  }
  if (!mla) return CheckRange("head_dim", config.head_dim, 1, kMaxHeads);
  LS_RETURN_IF_ERROR(CheckRange("q_rank", config.q_rank, 0, kMaxHeads));
  LS_RETURN_IF_ERROR(CheckRange("kv_rank", config.kv_rank, 1, kMaxHeads));
  LS_RETURN_IF_ERROR(CheckRange("qk_nope_dim", config.qk_nope_dim, 1, kMaxHeads));
  LS_RETURN_IF_ERROR(CheckRange("qk_rope_dim", config.qk_rope_dim, 1, kMaxHeads));
  return CheckRange("v_dim", config.v_dim, 1, kMaxHeads);
}

Status CheckMlp(const ModelConfig& config) {
  if (config.moe_layers.size() != config.layers) {
    return Bad(
        Cat("model configuration: moe_layers describes ", config.moe_layers.size(), " layers of ", config.layers));
  }
  const auto moe = std::count(config.moe_layers.begin(), config.moe_layers.end(), true);
  if (static_cast<uint64_t>(moe) < config.layers) LS_RETURN_IF_ERROR(CheckRange("ffn", config.ffn, 1, kMaxExtent));
  if (moe == 0) return OkStatus();
  LS_RETURN_IF_ERROR(CheckRange("experts", config.experts, 1, kMaxExperts));
  LS_RETURN_IF_ERROR(CheckRange("expert_ffn", config.expert_ffn, 1, kMaxExtent));
  return CheckRange("shared_ffn", config.shared_ffn, 0, kMaxExtent);
}

}  // namespace

Status CheckModelConfig(const ModelConfig& config) {
  const Family* family = FindFamily(config.model_type);
  if (family == nullptr) return UnknownFamily(config.model_type);
  LS_RETURN_IF_ERROR(CheckRange("layers", config.layers, 1, kMaxLayers));
  LS_RETURN_IF_ERROR(CheckRange("mtp_layers", config.mtp_layers, 0, family->mtp ? kMaxLayers : 0)
                         .WithContext(Cat("num_nextn_predict_layers of ", config.model_type)));
  LS_RETURN_IF_ERROR(CheckRange("hidden", config.hidden, 1, kMaxExtent));
  LS_RETURN_IF_ERROR(CheckRange("vocabulary", config.vocabulary, 1, kMaxExtent));
  LS_RETURN_IF_ERROR(CheckHeads(config, family->mla));
  return CheckMlp(config);
}

std::vector<std::string_view> KnownFamilies() {
  std::vector<std::string_view> known;
  for (const Family& family : Families()) known.push_back(family.model_type);
  return known;
}

Result<ModelConfig> ParseModelConfig(std::string_view config_json) {
  if (config_json.size() > kMaxConfigBytes) return Bad("config.json: larger than 1 MiB");
  const auto json = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Bad("config.json: not a JSON object");
  JsonKeys keys(json);
  RefuseForeignParts(keys);
  const std::string model_type = keys.Text("model_type");
  LS_RETURN_IF_ERROR(keys.status());
  const Family* family = FindFamily(model_type);
  if (family == nullptr) return UnknownFamily(model_type);
  RefuseFlags(keys, *family);
  ModelConfig config = Read(keys, *family);
  LS_RETURN_IF_ERROR(keys.status());
  LS_RETURN_IF_ERROR(CheckModelConfig(config));
  return config;
}

}  // namespace lockstep::rules

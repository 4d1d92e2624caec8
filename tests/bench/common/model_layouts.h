// HuggingFace layouts of large real models, for benchmarks.
// Nothing is allocated but names and shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"

namespace lockstep::bench {

// The sizes that config.json gives. 0 in `kv_rank`: no latent attention; in `experts`: no experts.
struct ModelShape {
  uint64_t vocabulary = 200;
  uint64_t hidden = 32;
  uint64_t layers = 2;
  uint64_t ffn = 48;
  uint64_t heads = 8;
  uint64_t key_value_heads = 2;
  uint64_t head_dim = 4;
  bool head_norms = false;
  bool tied = false;

  uint64_t experts = 0;
  uint64_t expert_ffn = 16;
  uint64_t shared_ffn = 0;    // all shared experts together
  uint64_t dense_layers = 0;  // first ones, without experts
  bool router_bias = false;

  uint64_t q_rank = 0;
  uint64_t kv_rank = 0;
  uint64_t nope_dim = 0;
  uint64_t rope_dim = 0;
  uint64_t v_dim = 0;
  uint64_t mtp_layers = 0;
};

inline ModelShape Qwen3_30B_A3B() {
  ModelShape model{.vocabulary = 151'936, .hidden = 2048, .layers = 48};
  model.heads = 32;
  model.key_value_heads = 4;
  model.head_dim = 128;
  model.head_norms = true;
  model.experts = 128;
  model.expert_ffn = 768;
  return model;
}

inline ModelShape DeepSeekV3() {
  ModelShape model{.vocabulary = 129'280, .hidden = 7168, .layers = 61, .ffn = 18'432};
  model.heads = 128;
  model.key_value_heads = 128;
  model.experts = 256;
  model.expert_ffn = 2048;
  model.shared_ffn = 2048;
  model.dense_layers = 3;
  model.router_bias = true;
  model.q_rank = 1536;
  model.kv_rank = 512;
  model.nope_dim = 128;
  model.rope_dim = 64;
  model.v_dim = 128;
  model.mtp_layers = 1;
  return model;
}

// The tensors that transformers saves of such a model.
class HuggingFaceTensors {
 public:
  explicit HuggingFaceTensors(const ModelShape& model) : model_(model) {}

  std::vector<model::TensorMeta> Make() {
    Add("model.embed_tokens.weight", {model_.vocabulary, model_.hidden});
    for (uint64_t layer = 0; layer < model_.layers; ++layer) Layer(layer);
    prefix_.clear();
    Add("model.norm.weight", {model_.hidden});
    if (!model_.tied) Add("lm_head.weight", {model_.vocabulary, model_.hidden});
    for (uint64_t layer = model_.layers; layer < model_.layers + model_.mtp_layers; ++layer) MtpLayer(layer);
    return std::move(tensors_);
  }

 private:
  void Add(const std::string& name, std::vector<uint64_t> shape, model::DType dtype = model::DType::kBF16) {
    tensors_.push_back({.name = prefix_ + name, .dtype = dtype, .shape = std::move(shape)});
  }

  void Layer(uint64_t layer) {
    prefix_ = "model.layers." + std::to_string(layer) + ".";
    Add("input_layernorm.weight", {model_.hidden});
    if (model_.kv_rank > 0) {
      LatentAttention();
    } else {
      Attention();
    }
    Add("post_attention_layernorm.weight", {model_.hidden});
    if (model_.experts == 0 || layer < model_.dense_layers) {
      Mlp("mlp.", model_.ffn);
    } else {
      Experts();
    }
  }

  void Attention() {
    const uint64_t queries = model_.heads * model_.head_dim;
    const uint64_t keys = model_.key_value_heads * model_.head_dim;
    for (const auto& [name, rows] : {std::pair{"q", queries}, {"k", keys}, {"v", keys}}) {
      Add(std::string("self_attn.") + name + "_proj.weight", {rows, model_.hidden});
    }
    Add("self_attn.o_proj.weight", {model_.hidden, queries});
    if (!model_.head_norms) return;
    Add("self_attn.q_norm.weight", {model_.head_dim});
    Add("self_attn.k_norm.weight", {model_.head_dim});
  }

  void LatentAttention() {
    const uint64_t queries = model_.heads * (model_.nope_dim + model_.rope_dim);
    if (model_.q_rank > 0) {
      Add("self_attn.q_a_proj.weight", {model_.q_rank, model_.hidden});
      Add("self_attn.q_a_layernorm.weight", {model_.q_rank});
      Add("self_attn.q_b_proj.weight", {queries, model_.q_rank});
    } else {
      Add("self_attn.q_proj.weight", {queries, model_.hidden});
    }
    Add("self_attn.kv_a_proj_with_mqa.weight", {model_.kv_rank + model_.rope_dim, model_.hidden});
    Add("self_attn.kv_a_layernorm.weight", {model_.kv_rank});
    Add("self_attn.kv_b_proj.weight", {model_.heads * (model_.nope_dim + model_.v_dim), model_.kv_rank});
    Add("self_attn.o_proj.weight", {model_.hidden, model_.heads * model_.v_dim});
  }

  void Mlp(const std::string& name, uint64_t ffn) {
    Add(name + "gate_proj.weight", {ffn, model_.hidden});
    Add(name + "up_proj.weight", {ffn, model_.hidden});
    Add(name + "down_proj.weight", {model_.hidden, ffn});
  }

  void Experts() {
    Add("mlp.gate.weight", {model_.experts, model_.hidden});
    if (model_.router_bias) Add("mlp.gate.e_score_correction_bias", {model_.experts}, model::DType::kF32);
    for (uint64_t expert = 0; expert < model_.experts; ++expert) {
      const std::string name = "mlp.experts." + std::to_string(expert) + ".";
      Mlp(name, model_.expert_ffn);
    }
    if (model_.shared_ffn > 0) Mlp("mlp.shared_experts.", model_.shared_ffn);
  }

  void MtpLayer(uint64_t layer) {
    Layer(layer);
    Add("enorm.weight", {model_.hidden});
    Add("hnorm.weight", {model_.hidden});
    Add("eh_proj.weight", {model_.hidden, 2 * model_.hidden});
    Add("shared_head.norm.weight", {model_.hidden});
  }

  const ModelShape& model_;
  std::string prefix_;
  std::vector<model::TensorMeta> tensors_;
};

inline Result<std::shared_ptr<const model::ModelLayout>> LayoutOf(std::vector<model::TensorMeta> tensors) {
  LS_RETURN_IF_ERROR(model::AssignOffsets(tensors));
  return model::ModelLayout::Create(std::move(tensors));
}

inline Result<std::shared_ptr<const model::ModelLayout>> LayoutOf(const ModelShape& model) {
  return LayoutOf(HuggingFaceTensors(model).Make());
}

}  // namespace lockstep::bench

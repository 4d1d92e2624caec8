// Rows that SGLang and vLLM have in common: both build models of the same fused linear layers.
#pragma once

#include <array>

#include "raas_receiver/placement/rules/rule_table.h"

namespace lockstep::placement {

using enum RuleScope;
using enum ParameterCut;

inline constexpr ParameterRule kEmbedding[] = {
    {kModel, "model.embed_tokens.weight", kVocabulary, "model.embed_tokens.weight"},
};

inline constexpr ParameterRule kHead[] = {
    {kEnd, "model.norm.weight", kWhole, "model.norm.weight"},
    {.where = kEnd,
     .parameter = "lm_head.weight",
     .cut = kVocabulary,
     .tensors = "lm_head.weight",
     .tied = "model.embed_tokens.weight"},
};

// ---- attention ----

inline constexpr ParameterRule kAttention[] = {
    {kLayer, "input_layernorm.weight", kWhole, "input_layernorm.weight"},
    {kLayer, "self_attn.qkv_proj.weight", kQkv,
     "self_attn.q_proj.weight|self_attn.k_proj.weight|self_attn.v_proj.weight"},
    {kLayer, "self_attn.o_proj.weight", kRow, "self_attn.o_proj.weight"},
    {kLayer, "post_attention_layernorm.weight", kWhole, "post_attention_layernorm.weight"},
};

inline constexpr ParameterRule kQkvBias[] = {
    {kLayer, "self_attn.qkv_proj.bias", kQkv, "self_attn.q_proj.bias|self_attn.k_proj.bias|self_attn.v_proj.bias",
     "self_attn.q_proj.bias"},
};

inline constexpr ParameterRule kOutputBias[] = {
    {kLayer, "self_attn.o_proj.bias", kWhole, "self_attn.o_proj.bias", "self_attn.o_proj.bias"},
};

inline constexpr ParameterRule kHeadNorms[] = {
    {kLayer, "self_attn.q_norm.weight", kWhole, "self_attn.q_norm.weight", "self_attn.q_norm.weight"},
    {kLayer, "self_attn.k_norm.weight", kWhole, "self_attn.k_norm.weight", "self_attn.k_norm.weight"},
};

// Multi-head latent attention, but for the fused projection down, which engines name differently.
inline constexpr ParameterRule kLatentAttention[] = {
    {kLayer, "input_layernorm.weight", kWhole, "input_layernorm.weight"},
    {kLayer, "self_attn.q_a_layernorm.weight", kWhole, "self_attn.q_a_layernorm.weight", "self_attn.q_a_proj.weight"},
    {kLayer, "self_attn.q_b_proj.weight", kColumn, "self_attn.q_b_proj.weight", "self_attn.q_a_proj.weight"},
    {kLayer, "self_attn.q_proj.weight", kColumn, "self_attn.q_proj.weight", "!self_attn.q_a_proj.weight"},
    {kLayer, "self_attn.kv_a_proj_with_mqa.weight", kWhole, "self_attn.kv_a_proj_with_mqa.weight",
     "!self_attn.q_a_proj.weight"},
    {kLayer, "self_attn.kv_a_layernorm.weight", kWhole, "self_attn.kv_a_layernorm.weight"},
    {kLayer, "self_attn.kv_b_proj.weight", kColumn, "self_attn.kv_b_proj.weight"},
    {kLayer, "self_attn.o_proj.weight", kRow, "self_attn.o_proj.weight"},
    {kLayer, "post_attention_layernorm.weight", kWhole, "post_attention_layernorm.weight"},
};

// ---- MLPs ----

inline constexpr ParameterRule kDenseMlp[] = {
    {kDense, "mlp.gate_up_proj.weight", kGateUp, "mlp.gate_proj.weight|mlp.up_proj.weight"},
    {kDense, "mlp.down_proj.weight", kRow, "mlp.down_proj.weight"},
};

// HuggingFace keeps gate and up in one tensor; two more norms.
inline constexpr ParameterRule kGlm4Layer[] = {
    {kLayer, "post_self_attn_layernorm.weight", kWhole, "post_self_attn_layernorm.weight"},
    {kDense, "mlp.gate_up_proj.weight", kGateUp, "mlp.gate_up_proj.weight"},
    {kDense, "mlp.down_proj.weight", kRow, "mlp.down_proj.weight"},
    {kLayer, "post_mlp_layernorm.weight", kWhole, "post_mlp_layernorm.weight"},
};

inline constexpr ParameterRule kRouter[] = {
    {kSparse, "mlp.gate.weight", kWhole, "mlp.gate.weight"},
};

inline constexpr ParameterRule kRouterBias[] = {
    {kSparse, "mlp.gate.e_score_correction_bias", kWhole, "mlp.gate.e_score_correction_bias",
     "mlp.gate.e_score_correction_bias"},
};

// transformers writes Mixtral's router under either name, engines know one.
inline constexpr ParameterRule kMixtralRouter[] = {
    {kSparse, "block_sparse_moe.gate.weight", kWhole, "block_sparse_moe.gate.weight", "!mlp.gate.weight"},
    {kSparse, "block_sparse_moe.gate.weight", kWhole, "mlp.gate.weight", "mlp.gate.weight"},
};

// Stacks of routed experts, which engines name differently.
constexpr std::array<ParameterRule, 2> Experts(std::string_view w13, std::string_view w2) {
  return {{{.where = kSparse,
            .parameter = w13,
            .cut = kExpertGateUp,
            .tensors = "mlp.experts.{}.gate_proj.weight|mlp.experts.{}.up_proj.weight",
            .stacked = "mlp.experts.gate_up_proj"},
           {.where = kSparse,
            .parameter = w2,
            .cut = kExpertDown,
            .tensors = "mlp.experts.{}.down_proj.weight",
            .stacked = "mlp.experts.down_proj"}}};
}

constexpr std::array<ParameterRule, 2> MixtralExperts(std::string_view w13, std::string_view w2) {
  auto [gate_up, down] = Experts(w13, w2);
  gate_up.tensors = "block_sparse_moe.experts.{}.w1.weight|block_sparse_moe.experts.{}.w3.weight";
  down.tensors = "block_sparse_moe.experts.{}.w2.weight";
  return {gate_up, down};
}

inline constexpr ParameterRule kSharedExperts[] = {
    {.where = kSparse,
     .parameter = "mlp.shared_experts.gate_up_proj.weight",
     .cut = kGateUp,
     .tensors = "mlp.shared_experts.gate_proj.weight|mlp.shared_experts.up_proj.weight",
     .when = "mlp.shared_experts.gate_proj.weight",
     .shared_expert = true},
    {.where = kSparse,
     .parameter = "mlp.shared_experts.down_proj.weight",
     .cut = kRow,
     .tensors = "mlp.shared_experts.down_proj.weight",
     .when = "mlp.shared_experts.gate_proj.weight",
     .shared_expert = true},
};

inline constexpr ParameterRule kGatedSharedExpert[] = {
    {kSparse, "mlp.shared_expert.gate_up_proj.weight", kGateUp,
     "mlp.shared_expert.gate_proj.weight|mlp.shared_expert.up_proj.weight"},
    {kSparse, "mlp.shared_expert.down_proj.weight", kRow, "mlp.shared_expert.down_proj.weight"},
    {kSparse, "mlp.shared_expert_gate.weight", kWhole, "mlp.shared_expert_gate.weight"},
};

// ---- families that both engines build alike ----

inline constexpr ParameterRules kLlamaRows[] = {kEmbedding, kAttention, kQkvBias, kOutputBias, kDenseMlp, kHead};
inline constexpr ParameterRules kQwen2Rows[] = {kEmbedding, kAttention, kQkvBias, kDenseMlp, kHead};
inline constexpr ParameterRules kQwen3Rows[] = {kEmbedding, kAttention, kQkvBias, kOutputBias,
                                                kHeadNorms, kDenseMlp,  kHead};
inline constexpr ParameterRules kGlm4Rows[] = {kEmbedding, kAttention, kQkvBias, kGlm4Layer, kHead};

}  // namespace lockstep::placement

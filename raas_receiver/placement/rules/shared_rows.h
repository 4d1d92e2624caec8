// Rows that SGLang and vLLM have in common: both build models of the same fused linear layers.
#pragma once

#include "raas_receiver/placement/rules/rule_table.h"

namespace lockstep::placement_rules {

inline constexpr Row kEmbedding[] = {
    {Where::kModel, "model.embed_tokens.weight", Cut::kVocabulary, "model.embed_tokens.weight"},
};

inline constexpr Row kHead[] = {
    {Where::kEnd, "model.norm.weight", Cut::kWhole, "model.norm.weight"},
    {.where = Where::kEnd,
     .parameter = "lm_head.weight",
     .cut = Cut::kVocabulary,
     .tensors = "lm_head.weight",
     .tied = "model.embed_tokens.weight"},
};

// ---- attention ----

inline constexpr Row kAttention[] = {
    {Where::kLayer, "input_layernorm.weight", Cut::kWhole, "input_layernorm.weight"},
    {Where::kLayer, "self_attn.qkv_proj.weight", Cut::kQkv,
     "self_attn.q_proj.weight|self_attn.k_proj.weight|self_attn.v_proj.weight"},
    {Where::kLayer, "self_attn.o_proj.weight", Cut::kRow, "self_attn.o_proj.weight"},
    {Where::kLayer, "post_attention_layernorm.weight", Cut::kWhole, "post_attention_layernorm.weight"},
};

inline constexpr Row kQkvBias[] = {
    {Where::kLayer, "self_attn.qkv_proj.bias", Cut::kQkv,
     "self_attn.q_proj.bias|self_attn.k_proj.bias|self_attn.v_proj.bias", "self_attn.q_proj.bias"},
};

inline constexpr Row kOutputBias[] = {
    {Where::kLayer, "self_attn.o_proj.bias", Cut::kWhole, "self_attn.o_proj.bias", "self_attn.o_proj.bias"},
};

inline constexpr Row kHeadNorms[] = {
    {Where::kLayer, "self_attn.q_norm.weight", Cut::kWhole, "self_attn.q_norm.weight", "self_attn.q_norm.weight"},
    {Where::kLayer, "self_attn.k_norm.weight", Cut::kWhole, "self_attn.k_norm.weight", "self_attn.k_norm.weight"},
};

// Multi-head latent attention, but for the fused projection down, which engines name differently.
inline constexpr Row kLatentAttention[] = {
    {Where::kLayer, "input_layernorm.weight", Cut::kWhole, "input_layernorm.weight"},
    {Where::kLayer, "self_attn.q_a_layernorm.weight", Cut::kWhole, "self_attn.q_a_layernorm.weight",
     "self_attn.q_a_proj.weight"},
    {Where::kLayer, "self_attn.q_b_proj.weight", Cut::kColumn, "self_attn.q_b_proj.weight",
     "self_attn.q_a_proj.weight"},
    {Where::kLayer, "self_attn.q_proj.weight", Cut::kColumn, "self_attn.q_proj.weight", "!self_attn.q_a_proj.weight"},
    {Where::kLayer, "self_attn.kv_a_proj_with_mqa.weight", Cut::kWhole, "self_attn.kv_a_proj_with_mqa.weight",
     "!self_attn.q_a_proj.weight"},
    {Where::kLayer, "self_attn.kv_a_layernorm.weight", Cut::kWhole, "self_attn.kv_a_layernorm.weight"},
    {Where::kLayer, "self_attn.kv_b_proj.weight", Cut::kColumn, "self_attn.kv_b_proj.weight"},
    {Where::kLayer, "self_attn.o_proj.weight", Cut::kRow, "self_attn.o_proj.weight"},
    {Where::kLayer, "post_attention_layernorm.weight", Cut::kWhole, "post_attention_layernorm.weight"},
};

// ---- MLPs ----

inline constexpr Row kDenseMlp[] = {
    {Where::kDense, "mlp.gate_up_proj.weight", Cut::kGateUp, "mlp.gate_proj.weight|mlp.up_proj.weight"},
    {Where::kDense, "mlp.down_proj.weight", Cut::kRow, "mlp.down_proj.weight"},
};

// HuggingFace keeps gate and up in one tensor; two more norms.
inline constexpr Row kGlm4Layer[] = {
    {Where::kLayer, "post_self_attn_layernorm.weight", Cut::kWhole, "post_self_attn_layernorm.weight"},
    {Where::kDense, "mlp.gate_up_proj.weight", Cut::kGateUp, "mlp.gate_up_proj.weight"},
    {Where::kDense, "mlp.down_proj.weight", Cut::kRow, "mlp.down_proj.weight"},
    {Where::kLayer, "post_mlp_layernorm.weight", Cut::kWhole, "post_mlp_layernorm.weight"},
};

inline constexpr Row kRouter[] = {
    {Where::kSparse, "mlp.gate.weight", Cut::kWhole, "mlp.gate.weight"},
};

inline constexpr Row kRouterBias[] = {
    {Where::kSparse, "mlp.gate.e_score_correction_bias", Cut::kWhole, "mlp.gate.e_score_correction_bias",
     "mlp.gate.e_score_correction_bias"},
};

// transformers writes Mixtral's router under either name, engines know one.
inline constexpr Row kMixtralRouter[] = {
    {Where::kSparse, "block_sparse_moe.gate.weight", Cut::kWhole, "block_sparse_moe.gate.weight", "!mlp.gate.weight"},
    {Where::kSparse, "block_sparse_moe.gate.weight", Cut::kWhole, "mlp.gate.weight", "mlp.gate.weight"},
};

inline constexpr Row kSharedExperts[] = {
    {.where = Where::kSparse,
     .parameter = "mlp.shared_experts.gate_up_proj.weight",
     .cut = Cut::kGateUp,
     .tensors = "mlp.shared_experts.gate_proj.weight|mlp.shared_experts.up_proj.weight",
     .when = "mlp.shared_experts.gate_proj.weight",
     .shared_expert = true},
    {.where = Where::kSparse,
     .parameter = "mlp.shared_experts.down_proj.weight",
     .cut = Cut::kRow,
     .tensors = "mlp.shared_experts.down_proj.weight",
     .when = "mlp.shared_experts.gate_proj.weight",
     .shared_expert = true},
};

inline constexpr Row kGatedSharedExpert[] = {
    {Where::kSparse, "mlp.shared_expert.gate_up_proj.weight", Cut::kGateUp,
     "mlp.shared_expert.gate_proj.weight|mlp.shared_expert.up_proj.weight"},
    {Where::kSparse, "mlp.shared_expert.down_proj.weight", Cut::kRow, "mlp.shared_expert.down_proj.weight"},
    {Where::kSparse, "mlp.shared_expert_gate.weight", Cut::kWhole, "mlp.shared_expert_gate.weight"},
};

// ---- families that both engines build alike ----

inline constexpr Rows kLlamaRows[] = {kEmbedding, kAttention, kQkvBias, kOutputBias, kDenseMlp, kHead};
inline constexpr Rows kQwen2Rows[] = {kEmbedding, kAttention, kQkvBias, kDenseMlp, kHead};
inline constexpr Rows kQwen3Rows[] = {kEmbedding, kAttention, kQkvBias, kOutputBias, kHeadNorms, kDenseMlp, kHead};
inline constexpr Rows kGlm4Rows[] = {kEmbedding, kAttention, kQkvBias, kGlm4Layer, kHead};

}  // namespace lockstep::placement_rules

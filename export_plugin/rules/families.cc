#include <array>

#include "export_plugin/rules/family.h"

namespace lockstep::rules {
namespace {

using enum RowScope;
using enum ModelDim;
using enum TensorSplit;

// ---- rows that families share, in export order ---------------------------------------------------------------------

constexpr FamilyRow kEmbedding[] = {
    {kModel, "embedding.word_embeddings.weight", kVocabularyRows, kHidden, kVocabulary, "model.embed_tokens.weight"},
};

constexpr FamilyRow kFinal[] = {
    {kEnd, "decoder.final_layernorm.weight", kHidden, kNone, kReplicated, "model.norm.weight"},
    {kEnd, "output_layer.weight", kVocabularyRows, kHidden, kVocabulary, "lm_head.weight", RowCondition::kUntied},
};

constexpr FamilyRow kAttention[] = {
    {kLayer, "self_attention.linear_qkv.layer_norm_weight|input_layernorm.weight", kHidden, kNone, kReplicated,
     "input_layernorm.weight"},
    {kLayer, "self_attention.linear_qkv.weight", kQkvRows, kHidden, kQkv,
     "self_attn.q_proj.weight|self_attn.k_proj.weight|self_attn.v_proj.weight"},
    {kLayer, "self_attention.linear_qkv.bias", kQkvRows, kNone, kQkv,
     "self_attn.q_proj.bias|self_attn.k_proj.bias|self_attn.v_proj.bias", RowCondition::kQkvBias},
    {kLayer, "self_attention.q_layernorm.weight", kHeadDim, kNone, kReplicated, "self_attn.q_norm.weight",
     RowCondition::kQkNorm},
    {kLayer, "self_attention.k_layernorm.weight", kHeadDim, kNone, kReplicated, "self_attn.k_norm.weight",
     RowCondition::kQkNorm},
    {kLayer, "self_attention.linear_proj.weight", kHidden, kHeads, kRow, "self_attn.o_proj.weight"},
};

// Multi-head latent attention: its input norm is never fused.
constexpr FamilyRow kLatentAttention[] = {
    {kLayer, "input_layernorm.weight", kHidden, kNone, kReplicated, "input_layernorm.weight"},
    {kLayer, "self_attention.linear_q_proj.weight", kMlaQuery, kHidden, kColumn, "self_attn.q_proj.weight",
     RowCondition::kNoQueryRank},
    {kLayer, "self_attention.linear_q_down_proj.weight", kQueryRank, kHidden, kColumnOrReplicated,
     "self_attn.q_a_proj.weight", RowCondition::kQueryRank},
    {kLayer, "self_attention.linear_kv_down_proj.weight", kKvDown, kHidden, kColumnOrReplicated,
     "self_attn.kv_a_proj_with_mqa.weight", RowCondition::kAlways, /*with_previous=*/true},
    {kLayer, "self_attention.linear_q_up_proj.layer_norm_weight|self_attention.q_layernorm.weight", kQueryRank, kNone,
     kReplicated, "self_attn.q_a_layernorm.weight", RowCondition::kQueryRank},
    {kLayer, "self_attention.linear_q_up_proj.weight", kMlaQuery, kQueryRank, kColumn, "self_attn.q_b_proj.weight",
     RowCondition::kQueryRank},
    {kLayer, "self_attention.linear_kv_up_proj.layer_norm_weight|self_attention.kv_layernorm.weight", kKvRank, kNone,
     kReplicated, "self_attn.kv_a_layernorm.weight"},
    {kLayer, "self_attention.linear_kv_up_proj.weight", kMlaKv, kKvRank, kColumn, "self_attn.kv_b_proj.weight"},
    {kLayer, "self_attention.linear_proj.weight", kHidden, kMlaValue, kRow, "self_attn.o_proj.weight"},
};

constexpr FamilyRow kDenseNorm[] = {
    {kDense, "mlp.linear_fc1.layer_norm_weight|pre_mlp_layernorm.weight", kHidden, kNone, kReplicated,
     "post_attention_layernorm.weight"},
};

constexpr FamilyRow kDenseMlp[] = {
    {kDense, "mlp.linear_fc1.weight", kTwoFfn, kHidden, kGlu, "mlp.gate_proj.weight|mlp.up_proj.weight"},
    {kDense, "mlp.linear_fc2.weight", kHidden, kFfn, kRow, "mlp.down_proj.weight"},
};

// A router is read before its experts' inputs are gathered, so the norm before it is never fused.
constexpr FamilyRow kMoeNorm[] = {
    {kMoe, "pre_mlp_layernorm.weight", kHidden, kNone, kReplicated, "post_attention_layernorm.weight"},
};

constexpr FamilyRow kRouter[] = {
    {kMoe, "mlp.router.weight", kExperts, kHidden, kReplicated, "mlp.gate.weight"},
    {kMoe, "mlp.router.expert_bias", kExperts, kNone, kReplicated, "mlp.gate.e_score_correction_bias",
     RowCondition::kRouterBias, /*with_previous=*/false, /*fp32=*/true},
};

constexpr FamilyRow kRoutedExperts[] = {
    {kExpert, "mlp.experts.linear_fc1.weight{}|mlp.experts.local_experts.{}.linear_fc1.weight", kTwoExpertFfn, kHidden,
     kGlu, "mlp.experts.{}.gate_proj.weight|mlp.experts.{}.up_proj.weight"},
    {kExpert, "mlp.experts.linear_fc2.weight{}|mlp.experts.local_experts.{}.linear_fc2.weight", kHidden, kExpertFfn,
     kRow, "mlp.experts.{}.down_proj.weight"},
};

constexpr FamilyRow kSharedExperts[] = {
    {kMoe, "mlp.shared_experts.linear_fc1.weight", kTwoSharedFfn, kHidden, kGlu,
     "mlp.shared_experts.gate_proj.weight|mlp.shared_experts.up_proj.weight", RowCondition::kSharedExperts},
    {kMoe, "mlp.shared_experts.linear_fc2.weight", kHidden, kSharedFfn, kRow, "mlp.shared_experts.down_proj.weight",
     RowCondition::kSharedExperts},
};

// After the decoder's layers; the inner layer follows by the family's other rows.
constexpr FamilyRow kMtp[] = {
    {kMtpLayer, "enorm.weight", kHidden, kNone, kReplicated, "enorm.weight"},
    {kMtpLayer, "hnorm.weight", kHidden, kNone, kReplicated, "hnorm.weight"},
    {kMtpLayer, "eh_proj.weight", kHidden, kTwoHidden, kColumn, "eh_proj.weight"},
    {kMtpLayer, "final_layernorm.weight", kHidden, kNone, kReplicated, "shared_head.norm.weight"},
};

// ---- rows of one family --------------------------------------------------------------------------------------------

constexpr FamilyRow kQwen2SharedExpert[] = {
    {kMoe, "mlp.shared_experts.linear_fc1.weight", kTwoSharedFfn, kHidden, kGlu,
     "mlp.shared_expert.gate_proj.weight|mlp.shared_expert.up_proj.weight", RowCondition::kSharedExperts},
    {kMoe, "mlp.shared_experts.linear_fc2.weight", kHidden, kSharedFfn, kRow, "mlp.shared_expert.down_proj.weight",
     RowCondition::kSharedExperts},
    {kMoe, "mlp.shared_experts.gate_weight", kOne, kHidden, kReplicated, "mlp.shared_expert_gate.weight",
     RowCondition::kSharedExperts},
};

constexpr FamilyRow kMixtralMoe[] = {
    {kMoe, "mlp.router.weight", kExperts, kHidden, kReplicated, "block_sparse_moe.gate.weight"},
    {kExpert, "mlp.experts.linear_fc1.weight{}|mlp.experts.local_experts.{}.linear_fc1.weight", kTwoExpertFfn, kHidden,
     kGlu, "block_sparse_moe.experts.{}.w1.weight|block_sparse_moe.experts.{}.w3.weight"},
    {kExpert, "mlp.experts.linear_fc2.weight{}|mlp.experts.local_experts.{}.linear_fc2.weight", kHidden, kExpertFfn,
     kRow, "block_sparse_moe.experts.{}.w2.weight"},
};

// HuggingFace keeps gate and up in one tensor; the norms after attention and MLP are the Megatron layer's additions.
constexpr FamilyRow kGlm4Layer[] = {
    {kLayer, "post_self_attn_layernorm.weight", kHidden, kNone, kReplicated, "post_self_attn_layernorm.weight"},
    {kDense, "mlp.linear_fc1.layer_norm_weight|pre_mlp_layernorm.weight", kHidden, kNone, kReplicated,
     "post_attention_layernorm.weight"},
    {kDense, "mlp.linear_fc1.weight", kTwoFfn, kHidden, kGlu, "mlp.gate_up_proj.weight"},
    {kDense, "mlp.linear_fc2.weight", kHidden, kFfn, kRow, "mlp.down_proj.weight"},
    {kLayer, "post_mlp_layernorm.weight", kHidden, kNone, kReplicated, "post_mlp_layernorm.weight"},
};

// ---- families ------------------------------------------------------------------------------------------------------

using FamilyRows = std::span<const FamilyRow>;

constexpr FamilyRows kDenseRows[] = {kEmbedding, kAttention, kDenseNorm, kDenseMlp, kFinal};
constexpr FamilyRows kGlm4Rows[] = {kEmbedding, kAttention, kGlm4Layer, kFinal};
constexpr FamilyRows kMixtralRows[] = {kEmbedding, kAttention, kMoeNorm, kMixtralMoe, kFinal};
constexpr FamilyRows kQwen2MoeRows[] = {kEmbedding, kAttention,     kDenseNorm,         kDenseMlp, kMoeNorm,
                                        kRouter,    kRoutedExperts, kQwen2SharedExpert, kFinal};
constexpr FamilyRows kQwen3MoeRows[] = {kEmbedding, kAttention, kDenseNorm,     kDenseMlp,
                                        kMoeNorm,   kRouter,    kRoutedExperts, kFinal};
constexpr FamilyRows kGlm4MoeRows[] = {kEmbedding, kAttention,     kDenseNorm,     kDenseMlp, kMoeNorm,
                                       kRouter,    kRoutedExperts, kSharedExperts, kFinal,    kMtp};
constexpr FamilyRows kDeepSeekRows[] = {kEmbedding, kLatentAttention, kDenseNorm,     kDenseMlp, kMoeNorm,
                                        kRouter,    kRoutedExperts,   kSharedExperts, kFinal,    kMtp};

constexpr ConfigFlag kNever{"", false};
constexpr ConfigFlag kAlwaysSet{"", true};

constexpr Family kFamilies[] = {
    {.model_type = "llama",
     .rows = kDenseRows,
     .qkv_bias = kNever,
     .qk_norm = kNever,
     .refused_flags = "attention_bias|mlp_bias",
     .default_groups = true},
    {.model_type = "mistral", .rows = kDenseRows, .qkv_bias = kNever, .qk_norm = kNever},
    {.model_type = "qwen2", .rows = kDenseRows, .qkv_bias = kAlwaysSet, .qk_norm = kNever},
    {.model_type = "qwen3",
     .rows = kDenseRows,
     .qkv_bias = kNever,
     .qk_norm = kAlwaysSet,
     .refused_flags = "attention_bias",
     .default_head_dim = 128},
    {.model_type = "qwen2_moe",
     .rows = kQwen2MoeRows,
     .qkv_bias = {"qkv_bias", true},
     .qk_norm = kNever,
     .sparse = SparseLayers::kStep,
     .shared = SharedExperts::kOwnSize,
     .expert_ffn_key = "moe_intermediate_size"},
    {.model_type = "qwen3_moe",
     .rows = kQwen3MoeRows,
     .qkv_bias = kNever,
     .qk_norm = kAlwaysSet,
     .refused_flags = "attention_bias",
     .sparse = SparseLayers::kStep,
     .expert_ffn_key = "moe_intermediate_size"},
    {.model_type = "mixtral",
     .rows = kMixtralRows,
     .qkv_bias = kNever,
     .qk_norm = kNever,
     .sparse = SparseLayers::kEvery,
     .expert_ffn_key = "intermediate_size"},
    {.model_type = "deepseek_v3",
     .rows = kDeepSeekRows,
     .qkv_bias = kNever,
     .qk_norm = kNever,
     .refused_flags = "attention_bias",
     .sparse = SparseLayers::kFirstDense,
     .shared = SharedExperts::kCount,
     .expert_ffn_key = "moe_intermediate_size",
     .router_bias = true,
     .mla = true,
     .mtp = true},
    {.model_type = "glm4",
     .rows = kGlm4Rows,
     .qkv_bias = {"attention_bias", true},
     .qk_norm = kNever,
     .default_head_dim = 128},
    {.model_type = "glm4_moe",
     .rows = kGlm4MoeRows,
     .qkv_bias = {"attention_bias", false},
     .qk_norm = {"use_qk_norm", false},
     .sparse = SparseLayers::kFirstDense,
     .shared = SharedExperts::kCount,
     .expert_ffn_key = "moe_intermediate_size",
     .router_bias = true,
     .mtp = true},
};

}  // namespace

std::span<const Family> Families() {
  return kFamilies;
}

const Family* FindFamily(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

std::string_view NextPart(std::string_view& text) {
  const size_t bar = text.find('|');
  const std::string_view part = text.substr(0, bar);
  text = bar == std::string_view::npos ? std::string_view() : text.substr(bar + 1);
  return part;
}

}  // namespace lockstep::rules

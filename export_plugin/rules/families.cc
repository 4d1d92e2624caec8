
#include "export_plugin/rules/family.h"

namespace lockstep::rules {
namespace {

using enum RowScope;
using enum TensorSplit;

// ---- extents -------------------------------------------------------------------------------------------------------

constexpr ModelDim kNone = nullptr;
constexpr ModelDim kOne = [](const ModelConfig&) { return uint64_t{1}; };
constexpr ModelDim kHidden = [](const ModelConfig& of) { return of.hidden; };
constexpr ModelDim kTwoHidden = [](const ModelConfig& of) { return 2 * of.hidden; };
constexpr ModelDim kVocabularyRows = [](const ModelConfig& of) { return of.vocabulary; };
constexpr ModelDim kQkvRows = [](const ModelConfig& of) { return (of.heads + 2 * of.groups) * of.head_dim; };
constexpr ModelDim kHeads = [](const ModelConfig& of) { return of.heads * of.head_dim; };
constexpr ModelDim kHeadDim = [](const ModelConfig& of) { return of.head_dim; };
constexpr ModelDim kTwoFfn = [](const ModelConfig& of) { return 2 * of.ffn; };
constexpr ModelDim kFfn = [](const ModelConfig& of) { return of.ffn; };
constexpr ModelDim kTwoExpertFfn = [](const ModelConfig& of) { return 2 * of.expert_ffn; };
constexpr ModelDim kExpertFfn = [](const ModelConfig& of) { return of.expert_ffn; };
constexpr ModelDim kTwoSharedFfn = [](const ModelConfig& of) { return 2 * of.shared_ffn; };
constexpr ModelDim kSharedFfn = [](const ModelConfig& of) { return of.shared_ffn; };
constexpr ModelDim kExperts = [](const ModelConfig& of) { return of.experts; };
constexpr ModelDim kQueryRank = [](const ModelConfig& of) { return of.q_rank; };
constexpr ModelDim kKvRank = [](const ModelConfig& of) { return of.kv_rank; };
constexpr ModelDim kKvDown = [](const ModelConfig& of) { return of.kv_rank + of.qk_rope_dim; };
constexpr ModelDim kMlaQuery = [](const ModelConfig& of) { return of.heads * (of.qk_nope_dim + of.qk_rope_dim); };
constexpr ModelDim kMlaKv = [](const ModelConfig& of) { return of.heads * (of.qk_nope_dim + of.v_dim); };
constexpr ModelDim kMlaValue = [](const ModelConfig& of) { return of.heads * of.v_dim; };

// ---- conditions ----------------------------------------------------------------------------------------------------

constexpr RowCondition kIfUntied{"untied embeddings", [](const ModelConfig& of) { return !of.tied_embeddings; }};
constexpr RowCondition kIfQkvBias{"a bias on q, k and v", [](const ModelConfig& of) { return of.qkv_bias; }};
constexpr RowCondition kIfQkNorm{"norms of q and k", [](const ModelConfig& of) { return of.qk_norm; }};
constexpr RowCondition kIfRouterBias{"a router bias", [](const ModelConfig& of) { return of.router_bias; }};
constexpr RowCondition kIfSharedExperts{"shared experts", [](const ModelConfig& of) { return of.shared_ffn > 0; }};
constexpr RowCondition kIfQueryRank{"a q_lora_rank", [](const ModelConfig& of) { return of.q_rank > 0; }};
constexpr RowCondition kIfNoQueryRank{"no q_lora_rank", [](const ModelConfig& of) { return of.q_rank == 0; }};

// ---- rows that families share, in export order ---------------------------------------------------------------------

constexpr FamilyRow kEmbedding[] = {
    {kModel, "embedding.word_embeddings.weight", kVocabularyRows, kHidden, kVocabulary, "model.embed_tokens.weight"},
};

constexpr FamilyRow kFinal[] = {
    {kEnd, "decoder.final_layernorm.weight", kHidden, kNone, kReplicated, "model.norm.weight"},
    {kEnd, "output_layer.weight", kVocabularyRows, kHidden, kVocabulary, "lm_head.weight", kIfUntied},
};

constexpr FamilyRow kAttention[] = {
    {kLayer, "self_attention.linear_qkv.layer_norm_weight|input_layernorm.weight", kHidden, kNone, kReplicated,
     "input_layernorm.weight"},
    {kLayer, "self_attention.linear_qkv.weight", kQkvRows, kHidden, kQkv,
     "self_attn.q_proj.weight|self_attn.k_proj.weight|self_attn.v_proj.weight"},
    {kLayer, "self_attention.linear_qkv.bias", kQkvRows, kNone, kQkv,
     "self_attn.q_proj.bias|self_attn.k_proj.bias|self_attn.v_proj.bias", kIfQkvBias},
    {kLayer, "self_attention.q_layernorm.weight", kHeadDim, kNone, kReplicated, "self_attn.q_norm.weight", kIfQkNorm},
    {kLayer, "self_attention.k_layernorm.weight", kHeadDim, kNone, kReplicated, "self_attn.k_norm.weight", kIfQkNorm},
    {kLayer, "self_attention.linear_proj.weight", kHidden, kHeads, kRow, "self_attn.o_proj.weight"},
};

// Multi-head latent attention: its input norm is never fused.
constexpr FamilyRow kLatentAttention[] = {
    {kLayer, "input_layernorm.weight", kHidden, kNone, kReplicated, "input_layernorm.weight"},
    {kLayer, "self_attention.linear_q_proj.weight", kMlaQuery, kHidden, kColumn, "self_attn.q_proj.weight",
     kIfNoQueryRank},
    {kLayer, "self_attention.linear_q_down_proj.weight", kQueryRank, kHidden, kColumnOrReplicated,
     "self_attn.q_a_proj.weight", kIfQueryRank},
    {kLayer,
     "self_attention.linear_kv_down_proj.weight",
     kKvDown,
     kHidden,
     kColumnOrReplicated,
     "self_attn.kv_a_proj_with_mqa.weight",
     {},
     /*with_previous=*/true},
    {kLayer, "self_attention.linear_q_up_proj.layer_norm_weight|self_attention.q_layernorm.weight", kQueryRank, kNone,
     kReplicated, "self_attn.q_a_layernorm.weight", kIfQueryRank},
    {kLayer, "self_attention.linear_q_up_proj.weight", kMlaQuery, kQueryRank, kColumn, "self_attn.q_b_proj.weight",
     kIfQueryRank},
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
    {kMoe, "mlp.router.expert_bias", kExperts, kNone, kReplicated, "mlp.gate.e_score_correction_bias", kIfRouterBias,
     /*with_previous=*/false, /*fp32=*/true},
};

constexpr FamilyRow kRoutedExperts[] = {
    {kExpert, "mlp.experts.linear_fc1.weight{}|mlp.experts.local_experts.{}.linear_fc1.weight", kTwoExpertFfn, kHidden,
     kGlu, "mlp.experts.{}.gate_proj.weight|mlp.experts.{}.up_proj.weight"},
    {kExpert, "mlp.experts.linear_fc2.weight{}|mlp.experts.local_experts.{}.linear_fc2.weight", kHidden, kExpertFfn,
     kRow, "mlp.experts.{}.down_proj.weight"},
};

constexpr FamilyRow kSharedExperts[] = {
    {kMoe, "mlp.shared_experts.linear_fc1.weight", kTwoSharedFfn, kHidden, kGlu,
     "mlp.shared_experts.gate_proj.weight|mlp.shared_experts.up_proj.weight", kIfSharedExperts},
    {kMoe, "mlp.shared_experts.linear_fc2.weight", kHidden, kSharedFfn, kRow, "mlp.shared_experts.down_proj.weight",
     kIfSharedExperts},
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
     "mlp.shared_expert.gate_proj.weight|mlp.shared_expert.up_proj.weight", kIfSharedExperts},
    {kMoe, "mlp.shared_experts.linear_fc2.weight", kHidden, kSharedFfn, kRow, "mlp.shared_expert.down_proj.weight",
     kIfSharedExperts},
    {kMoe, "mlp.shared_experts.gate_weight", kOne, kHidden, kReplicated, "mlp.shared_expert_gate.weight",
     kIfSharedExperts},
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

constexpr ConfigFlag kAlwaysSet{"", true};

constexpr Family kFamilies[] = {
    {.model_type = "llama", .rows = kDenseRows, .refused_flags = "attention_bias|mlp_bias", .default_groups = true},
    {.model_type = "mistral", .rows = kDenseRows},
    {.model_type = "qwen2", .rows = kDenseRows, .qkv_bias = kAlwaysSet},
    {.model_type = "qwen3",
     .rows = kDenseRows,
     .qk_norm = kAlwaysSet,
     .refused_flags = "attention_bias",
     .default_head_dim = 128},
    {.model_type = "qwen2_moe",
     .rows = kQwen2MoeRows,
     .qkv_bias = {"qkv_bias", true},
     .sparse = SparseLayers::kStep,
     .shared = SharedExperts::kOwnSize,
     .expert_ffn_key = "moe_intermediate_size"},
    {.model_type = "qwen3_moe",
     .rows = kQwen3MoeRows,
     .qk_norm = kAlwaysSet,
     .refused_flags = "attention_bias",
     .sparse = SparseLayers::kStep,
     .expert_ffn_key = "moe_intermediate_size"},
    {.model_type = "mixtral",
     .rows = kMixtralRows,
     .sparse = SparseLayers::kEvery,
     .expert_ffn_key = "intermediate_size"},
    {.model_type = "deepseek_v3",
     .rows = kDeepSeekRows,
     .refused_flags = "attention_bias",
     .sparse = SparseLayers::kFirstDense,
     .shared = SharedExperts::kCount,
     .expert_ffn_key = "moe_intermediate_size",
     .router_bias = true,
     .mla = true,
     .mtp = true},
    {.model_type = "glm4", .rows = kGlm4Rows, .qkv_bias = {"attention_bias", true}, .default_head_dim = 128},
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

}  // namespace lockstep::rules

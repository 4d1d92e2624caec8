// What SGLang's ranks have of each family, unquantised and with its Triton expert kernels.
#include "raas_receiver/placement/rules/shared_rows.h"

namespace lockstep::placement_rules {
namespace {

constexpr Row kLatentDown[] = {
    {Where::kLayer, "self_attn.fused_qkv_a_proj_with_mqa.weight", Cut::kWhole,
     "self_attn.q_a_proj.weight|self_attn.kv_a_proj_with_mqa.weight", "self_attn.q_a_proj.weight"},
};

constexpr Row kExperts[] = {
    {.where = Where::kSparse,
     .parameter = "mlp.experts.w13_weight",
     .cut = Cut::kExpertGateUp,
     .tensors = "mlp.experts.{}.gate_proj.weight|mlp.experts.{}.up_proj.weight",
     .stacked = "mlp.experts.gate_up_proj"},
    {.where = Where::kSparse,
     .parameter = "mlp.experts.w2_weight",
     .cut = Cut::kExpertDown,
     .tensors = "mlp.experts.{}.down_proj.weight",
     .stacked = "mlp.experts.down_proj"},
};

// With a shared expert, which SGLang can keep as one more expert of the stack.
constexpr Row kExpertsAndShared[] = {
    {.where = Where::kSparse,
     .parameter = "mlp.experts.w13_weight",
     .cut = Cut::kExpertGateUp,
     .tensors = "mlp.experts.{}.gate_proj.weight|mlp.experts.{}.up_proj.weight",
     .stacked = "mlp.experts.gate_up_proj",
     .shared = "mlp.shared_experts.gate_proj.weight|mlp.shared_experts.up_proj.weight"},
    {.where = Where::kSparse,
     .parameter = "mlp.experts.w2_weight",
     .cut = Cut::kExpertDown,
     .tensors = "mlp.experts.{}.down_proj.weight",
     .stacked = "mlp.experts.down_proj",
     .shared = "mlp.shared_experts.down_proj.weight"},
};

constexpr Row kMixtralExperts[] = {
    {.where = Where::kSparse,
     .parameter = "block_sparse_moe.experts.w13_weight",
     .cut = Cut::kExpertGateUp,
     .tensors = "block_sparse_moe.experts.{}.w1.weight|block_sparse_moe.experts.{}.w3.weight",
     .stacked = "mlp.experts.gate_up_proj"},
    {.where = Where::kSparse,
     .parameter = "block_sparse_moe.experts.w2_weight",
     .cut = Cut::kExpertDown,
     .tensors = "block_sparse_moe.experts.{}.w2.weight",
     .stacked = "mlp.experts.down_proj"},
};

// SGLang builds every layer of the Qwen families with experts, so they have no rows of dense layers.
constexpr Rows kMixtralRows[] = {kEmbedding, kAttention, kMixtralRouter, kMixtralExperts, kHead};
constexpr Rows kQwen2MoeRows[] = {kEmbedding, kAttention, kQkvBias, kRouter, kExperts, kGatedSharedExpert, kHead};
constexpr Rows kQwen3MoeRows[] = {kEmbedding, kAttention, kQkvBias, kOutputBias, kHeadNorms, kRouter, kExperts, kHead};
constexpr Rows kGlm4MoeRows[] = {kEmbedding, kAttention,  kQkvBias,          kHeadNorms,     kDenseMlp,
                                 kRouter,    kRouterBias, kExpertsAndShared, kSharedExperts, kHead};
constexpr Rows kDeepSeekRows[] = {kEmbedding,  kLatentDown,       kLatentAttention, kDenseMlp, kRouter,
                                  kRouterBias, kExpertsAndShared, kSharedExperts,   kHead};

constexpr Family kFamilies[] = {
    {"deepseek_v3", kDeepSeekRows, /*mtp=*/true},
    {"glm4", kGlm4Rows},
    {"glm4_moe", kGlm4MoeRows, /*mtp=*/true},
    {"llama", kLlamaRows},
    {"mistral", kLlamaRows},
    {"mixtral", kMixtralRows},
    {"qwen2", kQwen2Rows},
    {"qwen2_moe", kQwen2MoeRows},
    {"qwen3", kQwen3Rows},
    {"qwen3_moe", kQwen3MoeRows},
};

}  // namespace

constexpr Engine kSglang{.name = "sglang", .families = kFamilies, .pads_for_group = true};

}  // namespace lockstep::placement_rules

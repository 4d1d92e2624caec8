// What vLLM's ranks have of each family, unquantised and with its Triton expert kernels. Routed experts have been a
// module of their own since 0.33.
#include "raas_receiver/placement/rules/shared_rows.h"

namespace lockstep::placement_rules {
namespace {

constexpr Row kMlpBias[] = {
    {Where::kDense, "mlp.gate_up_proj.bias", Cut::kGateUp, "mlp.gate_proj.bias|mlp.up_proj.bias", "mlp.gate_proj.bias"},
    {Where::kDense, "mlp.down_proj.bias", Cut::kWhole, "mlp.down_proj.bias", "mlp.down_proj.bias"},
};

constexpr Row kLatentDown[] = {
    {Where::kLayer, "self_attn.fused_qkv_a_proj.weight", Cut::kWhole,
     "self_attn.q_a_proj.weight|self_attn.kv_a_proj_with_mqa.weight", "self_attn.q_a_proj.weight"},
};

constexpr Row kExperts[] = {
    {.where = Where::kSparse,
     .parameter = "mlp.experts.routed_experts.w13_weight|mlp.experts.w13_weight",
     .cut = Cut::kExpertGateUp,
     .tensors = "mlp.experts.{}.gate_proj.weight|mlp.experts.{}.up_proj.weight",
     .stacked = "mlp.experts.gate_up_proj"},
    {.where = Where::kSparse,
     .parameter = "mlp.experts.routed_experts.w2_weight|mlp.experts.w2_weight",
     .cut = Cut::kExpertDown,
     .tensors = "mlp.experts.{}.down_proj.weight",
     .stacked = "mlp.experts.down_proj"},
};

constexpr Row kMixtralExperts[] = {
    {.where = Where::kSparse,
     .parameter = "block_sparse_moe.experts.routed_experts.w13_weight|block_sparse_moe.experts.w13_weight",
     .cut = Cut::kExpertGateUp,
     .tensors = "block_sparse_moe.experts.{}.w1.weight|block_sparse_moe.experts.{}.w3.weight",
     .stacked = "mlp.experts.gate_up_proj"},
    {.where = Where::kSparse,
     .parameter = "block_sparse_moe.experts.routed_experts.w2_weight|block_sparse_moe.experts.w2_weight",
     .cut = Cut::kExpertDown,
     .tensors = "block_sparse_moe.experts.{}.w2.weight",
     .stacked = "mlp.experts.down_proj"},
};

constexpr Rows kBiasedRows[] = {kEmbedding, kAttention, kQkvBias, kOutputBias, kDenseMlp, kMlpBias, kHead};
constexpr Rows kMixtralRows[] = {kEmbedding, kAttention, kMixtralRouter, kMixtralExperts, kHead};
constexpr Rows kQwen2MoeRows[] = {kEmbedding, kAttention, kQkvBias,           kDenseMlp,
                                  kRouter,    kExperts,   kGatedSharedExpert, kHead};
constexpr Rows kQwen3MoeRows[] = {kEmbedding, kAttention, kQkvBias, kOutputBias, kHeadNorms,
                                  kDenseMlp,  kRouter,    kExperts, kHead};
constexpr Rows kGlm4MoeRows[] = {kEmbedding, kAttention,  kQkvBias, kHeadNorms,     kDenseMlp,
                                 kRouter,    kRouterBias, kExperts, kSharedExperts, kHead};
constexpr Rows kDeepSeekRows[] = {kEmbedding,  kLatentDown, kLatentAttention, kDenseMlp, kRouter,
                                  kRouterBias, kExperts,    kSharedExperts,   kHead};

constexpr Family kFamilies[] = {
    {"deepseek_v3", kDeepSeekRows, /*mtp=*/true},
    {"glm4", kGlm4Rows},
    {"glm4_moe", kGlm4MoeRows, /*mtp=*/true},
    {"llama", kBiasedRows},
    {"mistral", kBiasedRows},
    {"mixtral", kMixtralRows},
    {"qwen2", kQwen2Rows},
    {"qwen2_moe", kQwen2MoeRows},
    {"qwen3", kQwen3Rows},
    {"qwen3_moe", kQwen3MoeRows},
};

}  // namespace

constexpr Engine kVllm{.name = "vllm", .families = kFamilies, .uneven_experts = true};

}  // namespace lockstep::placement_rules

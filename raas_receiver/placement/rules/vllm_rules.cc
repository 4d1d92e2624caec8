// What vLLM's ranks have of each family, unquantised and with its Triton expert kernels. Routed experts have been a
// module of their own since 0.33.
#include "raas_receiver/placement/rules/shared_rows.h"

namespace lockstep::placement {
namespace {

constexpr ParameterRule kMlpBias[] = {
    {kDense, "mlp.gate_up_proj.bias", kGateUp, "mlp.gate_proj.bias|mlp.up_proj.bias", "mlp.gate_proj.bias"},
    {kDense, "mlp.down_proj.bias", kWhole, "mlp.down_proj.bias", "mlp.down_proj.bias"},
};

constexpr ParameterRule kLatentDown[] = {
    {kLayer, "self_attn.fused_qkv_a_proj.weight", kWhole,
     "self_attn.q_a_proj.weight|self_attn.kv_a_proj_with_mqa.weight", "self_attn.q_a_proj.weight"},
};

constexpr auto kExperts = Experts("mlp.experts.routed_experts.w13_weight|mlp.experts.w13_weight",
                                  "mlp.experts.routed_experts.w2_weight|mlp.experts.w2_weight");

constexpr auto kMixtralExperts =
    MixtralExperts("block_sparse_moe.experts.routed_experts.w13_weight|block_sparse_moe.experts.w13_weight",
                   "block_sparse_moe.experts.routed_experts.w2_weight|block_sparse_moe.experts.w2_weight");

constexpr ParameterRules kBiasedRows[] = {kEmbedding, kAttention, kQkvBias, kOutputBias, kDenseMlp, kMlpBias, kHead};
constexpr ParameterRules kMixtralRows[] = {kEmbedding, kAttention, kMixtralRouter, kMixtralExperts, kHead};
constexpr ParameterRules kQwen2MoeRows[] = {kEmbedding, kAttention, kQkvBias,           kDenseMlp,
                                            kRouter,    kExperts,   kGatedSharedExpert, kHead};
constexpr ParameterRules kQwen3MoeRows[] = {kEmbedding, kAttention, kQkvBias, kOutputBias, kHeadNorms,
                                            kDenseMlp,  kRouter,    kExperts, kHead};
constexpr ParameterRules kGlm4MoeRows[] = {kEmbedding, kAttention,  kQkvBias, kHeadNorms,     kDenseMlp,
                                           kRouter,    kRouterBias, kExperts, kSharedExperts, kHead};
constexpr ParameterRules kDeepSeekRows[] = {kEmbedding,  kLatentDown, kLatentAttention, kDenseMlp, kRouter,
                                            kRouterBias, kExperts,    kSharedExperts,   kHead};

constexpr FamilyRules kFamilies[] = {
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

constexpr EngineRules kVllm{.name = "vllm", .families = kFamilies, .uneven_experts = true};

}  // namespace lockstep::placement

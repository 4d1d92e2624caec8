// What SGLang's ranks have of each family, unquantised and with its Triton expert kernels.
#include "raas_receiver/placement/rules/shared_rows.h"

namespace lockstep::placement {
namespace {

constexpr ParameterRule kLatentDown[] = {
    {kLayer, "self_attn.fused_qkv_a_proj_with_mqa.weight", kWhole,
     "self_attn.q_a_proj.weight|self_attn.kv_a_proj_with_mqa.weight", "self_attn.q_a_proj.weight"},
};

constexpr auto kExperts = Experts("mlp.experts.w13_weight", "mlp.experts.w2_weight");

// With a shared expert, which SGLang can keep as one more expert of the stack.
constexpr std::array<ParameterRule, 2> WithShared(std::array<ParameterRule, 2> experts) {
  experts[0].shared = "mlp.shared_experts.gate_proj.weight|mlp.shared_experts.up_proj.weight";
  experts[1].shared = "mlp.shared_experts.down_proj.weight";
  return experts;
}

constexpr auto kExpertsAndShared = WithShared(kExperts);

constexpr auto kMixtralExperts =
    MixtralExperts("block_sparse_moe.experts.w13_weight", "block_sparse_moe.experts.w2_weight");

// SGLang builds every layer of the Qwen families with experts, so they have no rows of dense layers.
constexpr ParameterRules kMixtralRows[] = {kEmbedding, kAttention, kMixtralRouter, kMixtralExperts, kHead};
constexpr ParameterRules kQwen2MoeRows[] = {kEmbedding, kAttention,         kQkvBias, kRouter,
                                            kExperts,   kGatedSharedExpert, kHead};
constexpr ParameterRules kQwen3MoeRows[] = {kEmbedding, kAttention, kQkvBias, kOutputBias,
                                            kHeadNorms, kRouter,    kExperts, kHead};
constexpr ParameterRules kGlm4MoeRows[] = {kEmbedding, kAttention,  kQkvBias,          kHeadNorms,     kDenseMlp,
                                           kRouter,    kRouterBias, kExpertsAndShared, kSharedExperts, kHead};
constexpr ParameterRules kDeepSeekRows[] = {kEmbedding,  kLatentDown,       kLatentAttention, kDenseMlp, kRouter,
                                            kRouterBias, kExpertsAndShared, kSharedExperts,   kHead};

constexpr FamilyRules kFamilies[] = {
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

constexpr EngineRules kSglang{.name = "sglang", .families = kFamilies, .pads_for_group = true};

}  // namespace lockstep::placement

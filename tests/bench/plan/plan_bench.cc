// How long a trainer's start-up waits for its plan: from the text of all ranks' descriptions to copies, on one core.
//
//   plan_bench [--quick]
#include <cstdio>
#include <string_view>

#include "common/layout/copy_plan.h"
#include "common/layout/strided_copy.h"
#include "export_plugin/plan/shard_description.h"
#include "tests/bench/common/or_die.h"
#include "tests/bench/common/report.h"

namespace lockstep::bench {
namespace {

constexpr char kQwen3[] = R"({"model_type": "qwen3_moe", "torch_dtype": "bfloat16", "num_hidden_layers": 48,
  "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "tie_word_embeddings": false})";

constexpr char kDeepSeekV3[] = R"({"model_type": "deepseek_v3", "torch_dtype": "bfloat16", "num_hidden_layers": 61,
  "num_nextn_predict_layers": 1, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
  "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "vocab_size": 129280,
  "tie_word_embeddings": false})";

std::vector<std::string> DescriptionTexts(const char* config, const rules::Topology& topology) {
  std::vector<std::string> texts;
  for (const plan::ShardDescription& description :
       OrDie(plan::ExpectedDescriptions(config, topology, /*ranks_per_host=*/8, /*fused_norms=*/true))) {
    texts.push_back(plan::ToJson(description));
  }
  return texts;
}

// What `rank` does at every publish.
std::vector<layout::StridedCopy> CopiesOf(const layout::TrainingModel& model, const layout::CopyPlan& plan,
                                          uint32_t rank) {
  std::vector<const layout::Holding*> held(model.sources.size());
  for (const layout::Holding& holding : model.holdings) {
    if (holding.rank == rank && !holding.copy) held[holding.source] = &holding;
  }
  std::vector<layout::StridedCopy> copies;
  for (const layout::PlanEntry& entry : plan.ranks[rank].entries) {
    const model::TensorMeta& tensor = model.tensors[entry.tensor];
    const uint64_t element_bytes = model::FindDType(tensor.dtype)->bits / 8;
    const layout::Extents& local = held[entry.source]->local_shape;
    layout::AppendCopies(
        entry.pieces, layout::TensorView::Contiguous(local, element_bytes, 0),
        layout::TensorView::Contiguous(layout::Promoted(tensor.shape, local.size()), element_bytes, tensor.offset),
        copies);
  }
  return copies;
}

// All that one rank does; the plan and its proof are of all ranks. Returns the model's bytes.
uint64_t CompileAll(const std::vector<std::string>& texts, size_t tensors) {
  std::vector<plan::ShardDescription> descriptions;
  for (const std::string& text : texts) descriptions.push_back(OrDie(plan::ParseDescription(text)));
  const layout::TrainingModel model = OrDie(plan::BuildTrainingModel(descriptions));
  const layout::CopyPlan plan = OrDie(layout::CompileExport(model, plan::OnAgentHost(descriptions)));
  if (model.tensors.size() != tensors || CopiesOf(model, plan, 0).empty()) {
    std::fprintf(stderr, "plan_bench: %zu tensors, not %zu, or nothing to copy\n", model.tensors.size(), tensors);
    std::exit(1);
  }
  return plan.bytes;
}

void Measure(std::string_view name, const std::vector<std::string>& texts, size_t tensors, int repeats, double bound) {
  uint64_t bytes = 0;
  const std::vector<double> seconds = TimeRepeated(repeats, [&] { bytes = CompileAll(texts, tensors); });
  PrintResult(name, "s", bytes, seconds, {bound});
}

void Run(bool quick) {
  const int repeats = quick ? 1 : 5;
  Measure("plan_compile_qwen3_30b_a3b",
          DescriptionTexts(kQwen3, {.world = 64, .tensor = 4, .pipeline = 2, .expert = 8}), 18'867, repeats, 1);
  Measure(
      "plan_compile_deepseek_v3",
      DescriptionTexts(
          kDeepSeekV3,
          {.world = 512, .tensor = 8, .pipeline = 16, .expert = 32, .first_stage_layers = 3, .last_stage_layers = 2}),
      46'181, repeats, 10);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Run(lockstep::bench::IsQuick(argc, argv));
}

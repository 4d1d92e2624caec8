// How long a start waits for its plan, on one core: a trainer's, from the text of all ranks' descriptions to copies,
// and an engine's, from what its eight ranks say of themselves to the copies of all of them.
#include "common/layout/copy_plan.h"
#include "common/layout/strided_copy.h"
#include "export_plugin/plan/shard_description.h"
#include "raas_receiver/engine/placement/description/description_testing.h"
#include "raas_receiver/engine/placement/plan/placement_plan.h"
#include "tests/bench/common/bench.h"
#include "tests/bench/common/models.h"

namespace lockstep::bench {
namespace {

constexpr uint32_t kEngineRanks = 8;

// What the first rank does at every publish.
std::vector<layout::StridedCopy> CopiesOfFirst(const layout::TrainingModel& model, const layout::CopyPlan& plan) {
  std::vector<const layout::Holding*> held(model.sources.size());
  for (const layout::Holding& holding : model.holdings) {
    if (holding.rank == 0 && !holding.copy) held[holding.source] = &holding;
  }
  std::vector<layout::StridedCopy> copies;
  for (const layout::PlanEntry& entry : plan.ranks.front().entries) {
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

// All that one rank of a trainer does; the plan and its proof are of all ranks. Returns the model's bytes.
uint64_t CompileExport(const std::vector<std::string>& texts, size_t tensors) {
  std::vector<plan::ShardDescription> descriptions;
  for (const std::string& text : texts) descriptions.push_back(OrDie(plan::ParseDescription(text)));
  const layout::TrainingModel model = OrDie(plan::BuildTrainingModel(descriptions));
  const layout::CopyPlan plan = OrDie(layout::CompileExport(model, plan::OnAgentHost(descriptions)));
  Require(model.tensors.size() == tensors, "not so many tensors");
  Require(!CopiesOfFirst(model, plan).empty(), "nothing to copy");
  return plan.bytes;
}

void MeasureExport(std::string_view name, const char* config, const rules::Topology& topology, size_t tensors,
                   int repeats, double bound) {
  std::vector<std::string> texts;
  for (const plan::ShardDescription& description :
       OrDie(plan::ExpectedDescriptions(config, topology, /*ranks_per_host=*/8, /*fused_norms=*/true))) {
    texts.push_back(plan::ToJson(description));
  }
  uint64_t bytes = 0;
  const std::vector<double> seconds = TimeRepeated(repeats, [&] { bytes = CompileExport(texts, tensors); });
  PrintResult(name, "s", bytes, seconds, {bound});
}

void CompilePlacement(const model::ModelLayout& layout, const std::vector<std::string>& texts) {
  std::vector<engine::RankDescription> ranks;
  for (const std::string& text : texts) ranks.push_back(OrDie(engine::ParseDescription(text)));
  const auto plan = OrDie(engine::CompilePlacement(layout, ranks, OrDie(engine::UnusedTensors(layout, ranks))));
  Require(plan->size() == kEngineRanks && !plan->back().copies().empty(), "the plan is empty");
}

}  // namespace

void Run(bool quick) {
  const int repeats = quick ? 1 : 5;
  MeasureExport("plan_compile_qwen3_30b_a3b", kQwen3_30B_A3B, {.world = 64, .tensor = 4, .pipeline = 2, .expert = 8},
                18'867, repeats, 1);
  MeasureExport(
      "plan_compile_deepseek_v3", kDeepSeekV3,
      {.world = 512, .tensor = 8, .pipeline = 16, .expert = 32, .first_stage_layers = 3, .last_stage_layers = 2},
      46'181, repeats, 10);

  const auto layout = LayoutOf(kQwen3_30B_A3B);
  std::vector<std::string> texts;
  for (const auto& rank : QwenRanks(*layout, kEngineRanks)) texts.push_back(engine::ToJson(rank));
  PrintResult("placement_compile_qwen3_30b_a3b", "s", layout->data_bytes(),
              TimeRepeated(repeats, [&] { CompilePlacement(*layout, texts); }), {1.0});
}

}  // namespace lockstep::bench

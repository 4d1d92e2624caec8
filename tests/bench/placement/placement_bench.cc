// How long the first version waits for an engine's plan: from what eight ranks say of themselves to the copies of
// all of them, on one core.
//
//   placement_bench [--quick]
#include <string>
#include <vector>

#include "raas_receiver/placement/description/description_testing.h"
#include "raas_receiver/placement/plan/placement_plan.h"
#include "raas_receiver/placement/rules/rules.h"
#include "raas_receiver/placement/rules/rules_testing.h"
#include "raas_receiver/placement/rules/test_layouts.h"
#include "tests/bench/common/or_die.h"
#include "tests/bench/common/report.h"

namespace lockstep::bench {
namespace {

constexpr uint32_t kRanks = 8;

// What rank `rank` of a tensor-parallel vLLM says when it attaches: names, shapes and places, no slices.
std::string DescriptionText(const model::ModelLayout& layout, uint32_t rank) {
  placement::RankDescription description{.rank = rank, .world = kRanks};
  description.place = {.engine = "vllm",
                       .family = "qwen3_moe",
                       .tensor = {kRanks, rank},
                       .expert_tensor = {kRanks, rank},
                       .key_value_heads = 4};
  description.parameters = OrDie(placement::ExpandRules(layout, description.place)).parameters;
  uint64_t bytes = 0;
  for (placement::EngineParameter& parameter : description.parameters) {
    bytes = parameter.offset + layout::ElementCount(parameter.shape) * model::FindDType(parameter.dtype)->bits / 8;
    parameter.slices.clear();
    parameter.padding.clear();
  }
  description.memories = {bytes};
  return placement::ToJson(description);
}

void Compile(const model::ModelLayout& layout, const std::vector<std::string>& texts) {
  std::vector<placement::RankDescription> ranks;
  for (const std::string& text : texts) ranks.push_back(OrDie(placement::ParseDescription(text)));
  const std::vector<std::string> unused = OrDie(placement::CompleteDescriptions(layout, ranks));
  const auto plan = OrDie(placement::CompilePlacement(layout, ranks, unused));
  if (plan->size() != kRanks || plan->back().copies().empty()) Fail({ErrorCode::kInternal, "the plan is empty"});
}

void Run(bool quick) {
  const auto layout = OrDie(placement::LayoutOf(placement::Qwen3_30B_A3B()));
  std::vector<std::string> texts;
  for (uint32_t rank = 0; rank < kRanks; ++rank) texts.push_back(DescriptionText(*layout, rank));
  PrintResult("placement_compile_qwen3_30b_a3b", "s", layout->data_bytes(),
              TimeRepeated(quick ? 2 : 7, [&] { Compile(*layout, texts); }), {1.0});
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Run(lockstep::bench::IsQuick(argc, argv));
}

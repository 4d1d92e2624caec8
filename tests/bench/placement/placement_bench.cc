// How long the first version waits for an engine's plan: from what eight ranks say of themselves to the copies of
// all of them, on one core.
//
//   placement_bench [--quick]
#include <string>
#include <vector>

#include "raas_receiver/placement/description/description_testing.h"
#include "raas_receiver/placement/plan/placement_plan.h"
#include "tests/bench/common/model_layouts.h"
#include "tests/bench/common/or_die.h"
#include "tests/bench/common/report.h"
#include "tests/bench/placement/qwen_ranks.h"

namespace lockstep::bench {
namespace {

constexpr uint32_t kRanks = 8;

void Compile(const model::ModelLayout& layout, const std::vector<std::string>& texts) {
  std::vector<placement::RankDescription> ranks;
  for (const std::string& text : texts) ranks.push_back(OrDie(placement::ParseDescription(text)));
  const auto plan = OrDie(placement::CompilePlacement(layout, ranks, OrDie(placement::UnusedTensors(layout, ranks))));
  if (plan->size() != kRanks || plan->back().copies().empty()) Fail({ErrorCode::kInternal, "the plan is empty"});
}

void Run(bool quick) {
  const auto layout = OrDie(LayoutOf(Qwen3_30B_A3B()));
  std::vector<std::string> texts;
  for (uint32_t rank = 0; rank < kRanks; ++rank) texts.push_back(placement::ToJson(QwenRank(*layout, rank, kRanks)));
  PrintResult("placement_compile_qwen3_30b_a3b", "s", layout->data_bytes(),
              TimeRepeated(quick ? 2 : 7, [&] { Compile(*layout, texts); }), {1.0});
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Run(lockstep::bench::IsQuick(argc, argv));
}

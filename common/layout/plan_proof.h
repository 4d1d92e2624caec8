// The proof of an export plan: over all ranks, every element of every HuggingFace tensor is written exactly once.
#pragma once

#include <vector>

#include "common/layout/copy_plan.h"

namespace lockstep::layout {

// kBadData names the first tensor for which it is not so, and the ranks that write the same elements or the elements
// that no rank has.
Status ProveTiling(const TrainingModel& model, const std::vector<RankPlan>& ranks);

}  // namespace lockstep::layout

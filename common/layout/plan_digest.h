// The digest of a plan: over tensors, ranks and entries in an encoding that knows sources by name, so that it does not
// depend on the order of a TrainingModel's lists.
#pragma once

#include <vector>

#include "common/layout/copy_plan.h"

namespace lockstep::layout {

// REQUIRES entries sorted as CompileExport leaves them.
PlanDigest DigestOf(const TrainingModel& model, const std::vector<bool>& on_agent_host,
                    const std::vector<RankPlan>& ranks);

}  // namespace lockstep::layout

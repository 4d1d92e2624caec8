// The plans of all parts' pulls as one plan of the whole. A pure function, for parted_origin.cc.
#pragma once

#include <optional>
#include <vector>

#include "raas_receiver/origin/origin.h"

namespace lockstep::origin {

struct JoinedPlan {
  Plan plan;
  std::vector<std::vector<pull::DeltaStep>> steps;  // of each part, that lead to the plan's target
};

// Leads to the newest version that all of `plans` reach, of those whose label is known: the plans' targets, and `held`,
// which leads to nothing new. No value: there is none. A joined step has the steps of all parts to its version; some of
// these versions may be no version of the whole. `digests`: of the version that each plan's steps begin with; zero
// where it is not known. The joined plan is full if one is: its steps are for parts that have deltas, and come with
// CatchUp. REQUIRES a plan for each part of `whole`, of one run.
std::optional<JoinedPlan> JoinPlans(const model::ModelLayout& whole, const std::vector<Plan>& plans,
                                    std::vector<ManifestDigest> digests, const VersionRef& held);

}  // namespace lockstep::origin

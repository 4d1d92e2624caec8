#include "raas_receiver/origin/joined_plan.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "common/model/manifest.h"

namespace lockstep::origin {

std::optional<JoinedPlan> JoinPlans(const model::ModelLayout& whole, const std::vector<Plan>& plans,
                                    std::vector<ManifestDigest> digests, const VersionRef& held) {
  const auto reaches = [&](size_t part, Version version) {
    const Plan& plan = plans[part];
    return plan.target.version == version || std::ranges::any_of(plan.steps, [&](const pull::DeltaStep& step) {
             return step.target == version || (step.base == version && !digests[part].IsZero());
           });
  };
  Plan stays = plans[0];
  stays.target = held;
  std::vector<const Plan*> candidates;
  for (const Plan& plan : plans) candidates.push_back(&plan);
  const bool full = std::ranges::any_of(plans, &Plan::full);
  if (!held.nothing() && !full) candidates.push_back(&stays);
  const Plan* newest = nullptr;
  for (const Plan* candidate : candidates) {
    bool reached = true;
    for (size_t part = 0; part < plans.size(); ++part) {
      reached = reached && reaches(part, candidate->target.version);
    }
    if (reached && (newest == nullptr || newest->target.version < candidate->target.version)) newest = candidate;
  }
  if (newest == nullptr) return std::nullopt;
  const Version target = newest->target.version;
  JoinedPlan joined;
  joined.plan = *newest;
  joined.plan.steps.clear();
  joined.plan.changed_elements = 0;
  joined.plan.transfer = 0;
  joined.plan.full = full;
  std::set<Version> versions;  // that the joined steps lead to, and begin with
  for (const Plan& plan : plans) {
    std::vector<pull::DeltaStep>& steps = joined.steps.emplace_back();
    for (const pull::DeltaStep& step : plan.steps) {
      if (step.target > target) continue;
      steps.push_back(step);
      versions.insert({step.base, step.target});
    }
    if (joined.plan.transfer == 0) joined.plan.transfer = plan.transfer;
    if (plan.target.version == target) {
      joined.plan.committed_unix_ns = std::max(joined.plan.committed_unix_ns, plan.committed_unix_ns);
    }
  }
  // Parts that are at the target from the beginning.
  for (size_t part = 0; part < plans.size(); ++part) {
    if (joined.steps[part].empty() && plans[part].target.version == target) digests[part] = plans[part].target_digest;
  }
  if (!versions.empty()) joined.plan.base.version = *versions.begin();
  for (auto version = versions.begin(); version != versions.end(); ++version) {
    if (version == versions.begin()) continue;
    pull::DeltaStep& step = joined.plan.steps.emplace_back();
    step = {.payload_id = joined.plan.steps.size(), .base = *std::prev(version), .target = *version};
    for (size_t part = 0; part < plans.size(); ++part) {
      for (const pull::DeltaStep& own : joined.steps[part]) {
        if (own.target != *version) continue;
        digests[part] = own.target_digest;
        step.entries += own.entries;
        step.data_bytes += own.data_bytes;
        step.changed_elements += own.changed_elements;
      }
    }
    step.target_digest = model::JoinedDigest(whole, digests);
    joined.plan.changed_elements += step.changed_elements;
  }
  joined.plan.target_digest = model::JoinedDigest(whole, digests);
  return joined;
}

}  // namespace lockstep::origin

// EngineGroup: the ranks of one engine, kept at one version: which belong to it (group_members.h), the plan of where
// the model lies in their memory, and one commit after the other (group_commit.h).
//
//   Incomplete --(the last rank joins)--> Complete --(Prepare)--> Prepared --(Commit, Abandon)--> Complete
//        ^                                    |
//        +-----------(a rank is lost)---------+
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/plan/placement_plan.h"
#include "raas_receiver/targets/group_commit.h"
#include "raas_receiver/targets/group_members.h"
#include "raas_receiver/targets/target_version.h"

namespace lockstep::targets {

// What engines are to be brought to: `version`, by `deltas` between what ranks hold. `before` (nothing: it is not at
// hand) is what they may still read.
struct CommitRequest {
  TargetVersion version;
  std::optional<TargetVersion> before;
  DeltasBetween deltas;
};

class EngineGroup {
 public:
  // `options` outlives this. The group has the world of `first`, which has yet to Join.
  EngineGroup(const EngineTargetsOptions& options, const RankConnection& first);

  // --- between commits ---
  // Takes a rank, which Prepare answers once all are there. An error is why it must be refused: as
  // GroupMembers::MakeRoom, and kState for a description that was made for another layout than `layout`.
  Status Join(std::shared_ptr<RankConnection> rank, const model::ModelLayout& layout);
  // Drops the ranks whose connection has ended. Returns whether there were any.
  bool DropGone() { return members_.DropGone(); }

  // The ranks that were lost since the last call.
  std::vector<LostRank> TakeLost() { return members_.TakeLost(); }

  bool empty() const { return members_.attached() == 0; }
  // Whether all ranks are there, and at `held`.
  bool At(const VersionRef& held) const;
  EngineReport Describe() const;
  std::vector<std::shared_ptr<RankConnection>> ranks() const { return members_.present(); }

  // As EngineTargets' calls of these names, for this group. An incomplete group, and one with a rank that is asleep,
  // has nothing to prepare. Prepare refuses ranks that do not fit the others.
  Status Prepare(const CommitRequest& request);
  bool prepared() const { return commit_ != nullptr; }
  Status Commit();
  void Abandon() { commit_.reset(); }
  Status Verify(const TargetVersion& version);
  void Doubt();

 private:
  bool awake() const;  // all ranks are there, and none is asleep
  Status TryPrepare(const CommitRequest& request);
  bool SomeWait(const CommitRequest& request) const;
  Status CatchUp(const CommitRequest& request);
  Status Plan(const CommitRequest& request, const model::ModelLayout& layout);
  Status PlanFor(const model::ModelLayout& layout);
  Status RefuseOtherLayouts(const model::ModelLayout& layout);
  void SetUnused(std::vector<std::string> unused);
  Status CheckClaims(const CommitRequest& request);
  Status Failed(Status status);

  const EngineTargetsOptions& options_;
  GroupMembers members_;
  std::shared_ptr<const placement::PlacementPlan> plan_;  // null: none was compiled yet
  LayoutDigest plan_layout_;                              // what plan_ is for,
  uint64_t plan_members_ = 0;                             // and at which of the members' changes
  std::unique_ptr<GroupCommit> commit_;
  EngineReport report_;  // without what Describe looks up
};

}  // namespace lockstep::targets

// EngineGroup: the ranks of one engine, and the two-phase commit that keeps them at one version (FORMAT.md).
//
//   Incomplete --(the last rank joins)--> Complete --(Prepare)--> Prepared --(Commit, Abandon)--> Complete
//        ^                                    |
//        +-----------(a rank is lost)---------+
//
// A half of a rank is written in Prepare when the rank does not read it, and else in Commit, while the rank is held. So
// double-buffered ranks are held for a moment only, and a group whose ranks read different halves is put right like any
// other.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/plan/placement_plan.h"
#include "raas_receiver/targets/control_page.h"
#include "raas_receiver/targets/half_writes.h"
#include "raas_receiver/targets/rank_link.h"
#include "raas_receiver/targets/target_version.h"

namespace lockstep {

class EngineGroup {
 public:
  // `options` and `pool` outlive this. The group has the world and halves of `first`, which has yet to Join.
  EngineGroup(const EngineTargetsOptions& options, const RankLink& first, WorkerPool& pool);

  // --- between commits ---
  // Takes a rank, which Prepare answers once all are there. An error is why it must be refused: kBadData for another
  // world or other halves than the group's, or a description that does not fit `layout`; kState when its place is
  // taken.
  Status Join(std::shared_ptr<RankLink> link, const ModelLayout& layout);
  // Gives up the ranks whose connection has ended. Whether there were any.
  bool DropGone();

  bool empty() const { return attached() == 0; }
  bool complete() const { return attached() == ranks_.size(); }
  // Whether all ranks are there, and at `held`.
  bool At(const Held& held) const;
  EngineReport Describe() const;
  std::vector<std::shared_ptr<RankLink>> links() const;

  // As EngineTargets' calls of these names, for this group. An incomplete group has nothing to prepare. Prepare refuses
  // ranks that do not fit the others.
  Status Prepare(const TargetVersion& version, const std::optional<TargetVersion>& before, const DeltasBetween& deltas);
  bool prepared() const { return work_.has_value(); }
  Status Commit();
  void Abandon() { work_.reset(); }
  Status Verify(const TargetVersion& version);

 private:
  using Clock = std::chrono::steady_clock;
  using Plan = std::shared_ptr<const PlacementPlan>;

  struct Work {  // what Prepare leaves for Commit, and Commit for giving up
    TargetVersion version;
    std::optional<TargetVersion> before;
    DeltasBetween deltas;
    Plan plan;
    std::vector<std::shared_ptr<RankLink>> ranks;  // those that are lost meanwhile too
    uint32_t half = 0;
    HeldByRank written;  // what the ranks that are written in the pause held in the half
    HalfWrites writes;   // those of the pause
    uint64_t idle_bytes = 0;
    // Once the page said WRITING: what it said before.
    bool writing = false;
    EngineState state_before = EngineState::kEmpty;
    Held served;
  };

  size_t attached() const;
  Status CheckPlace(const RankLink& link);
  Status SendPage();
  void Drop(size_t rank, const Status& why);
  void Refuse(size_t rank, const Status& why);
  void Forget(size_t rank);

  Status CompileFor(const ModelLayout& layout);
  Result<Plan> CompilePlan(const ModelLayout& layout, EngineRanks ranks) const;
  Status CheckClaims(const TargetVersion& version, const std::optional<TargetVersion>& before);
  void Adopt();
  Status TryPrepare(const TargetVersion& version, const std::optional<TargetVersion>& before,
                    const DeltasBetween& deltas);
  uint32_t TargetHalf() const;

  Status TryCommit(Work& work);
  template <typename Call>
  Status CallRanks(const Call& call);
  Status HoldAll(const Held& next);
  Status Write(Work& work);
  void GiveUp(Work& work);
  Status WriteBack(Work& work);
  void ServeAll(const Held& held, uint32_t half);
  void AwaitServing();
  void Step(std::string_view step) const;
  Status Failed(Status status);

  const EngineTargetsOptions& options_;
  WorkerPool& pool_;
  const std::string engine_;
  const uint32_t halves_;
  std::vector<std::shared_ptr<RankLink>> ranks_;  // by rank; null: not there
  std::optional<ControlPage> page_;
  bool page_stale_ = false;    // a rank that had the page was lost
  Plan plan_;                  // null: to be compiled
  std::vector<bool> planned_;  // ranks that were part of a plan
  std::vector<bool> paged_;    // ranks that were sent page_
  LayoutDigest layout_;        // that plan_ is for
  std::optional<Work> work_;
  EngineReport report_;  // without what Describe looks up
};

}  // namespace lockstep

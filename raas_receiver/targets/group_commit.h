// GroupCommit: one commit of a version into the memory of an engine's ranks, in two phases (FORMAT.md, "A commit").
// Ranks that hold the version and read it already take no part.
//
//   Prepare() --> Prepared --(Pause)--> Paused --(Write)--> Written --(Serve)--> Served
//                    |                   |                  |
//                    +-------------------+------------------+--(a rank is lost, or a write fails)--> Aborted
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "raas_receiver/targets/group_members.h"
#include "raas_receiver/targets/group_writes.h"
#include "raas_receiver/targets/target_version.h"

namespace lockstep::targets {

class GroupCommit {
 public:
  // Brings `members` to `version`, by a plan for its layout and by `deltas` from what ranks hold; the version's data
  // and what `deltas` uses stay as they are until the commit has ended. `members` and `options` outlive this.
  // REQUIRES a complete group.
  GroupCommit(GroupMembers& members, TargetVersion version, const DeltasBetween& deltas,
              std::shared_ptr<const placement::PlacementPlan> plan, const EngineTargetsOptions& options);
  // What ranks have staged and not written is forgotten.
  ~GroupCommit() { DropStaged(); }
  GroupCommit(const GroupCommit&) = delete;
  GroupCommit& operator=(const GroupCommit&) = delete;

  // Works out the writes. Ranks have the changes staged afterwards.
  Status Prepare();

  // The pause, after Prepare. OK: the ranks serve the version; those that did not resume in time are dropped. After an
  // error ranks that failed are dropped; the others go on with what they read where they were not written, and else
  // wait for the next commit. Once only.
  Status Run();

  const VersionRef& version() const { return version_.held; }
  uint64_t written_bytes() const { return writes_.written_bytes(); }

 private:
  Status Pause();
  Status Write();
  void Serve();
  void GiveUp();
  void AwaitServing();
  Status CheckAllThere();
  void DropStaged() const;
  template <typename Call>
  Status ForEachPart(const Call& call);

  void Step(std::string_view step) const;

  GroupMembers& members_;
  const TargetVersion version_;
  const DeltasBetween deltas_;
  const std::shared_ptr<const placement::PlacementPlan> plan_;
  const EngineTargetsOptions& options_;
  WorkerPool pool_;  // its threads wait for ranks, which may be stopped: nothing else is to need them
  const std::vector<std::shared_ptr<RankConnection>> ranks_;  // of the plan: those that are lost meanwhile too
  HeldByRank held_;                                           // what those that take part held before
  GroupWrites writes_;                                        // those of the pause
};

}  // namespace lockstep::targets

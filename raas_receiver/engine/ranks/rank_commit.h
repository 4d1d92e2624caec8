// RankCommit: one commit of a version into the memory of a group's ranks, in two phases (FORMAT.md, "A commit"). Ranks
// that hold a version which deltas lead from are written what changed, the others everything. Ranks that hold the
// version and read it already take no part.
//
// An engine may have ranks on other hosts, with receivers of their own. These receivers agree through the ranks
// (RankGroup::Agree) that all hold the version, before a rank is paused; that all ranks are paused, before one is
// written; that all are written, before one is told to serve.
//
//   Prepare() --> Prepared --(Pause)--> Paused --(Write)--> Written --(Serve)--> Served
//                    |                   |                  |
//                    +-------------------+------------------+--(a rank is lost, or a write fails)--> Aborted
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "raas_receiver/engine/placement/plan/placement_plan.h"
#include "raas_receiver/engine/placement/writes/delta_writes.h"
#include "raas_receiver/engine/ranks/rank_connection.h"
#include "raas_receiver/engine/ranks/ranks_types.h"

namespace lockstep::engine {

class RankGroup;

class RankCommit {
 public:
  // Brings the ranks of `group` to `version`, by a plan for its layout. The version's data stays as it is until the
  // commit has ended. `group` and `options` outlive this. REQUIRES a complete group.
  RankCommit(RankGroup& group, VersionData version, std::shared_ptr<const PlacementPlan> plan,
             const EngineRanksOptions& options);
  // What ranks have staged and not written is forgotten.
  ~RankCommit() { DropStaged(); }
  RankCommit(const RankCommit&) = delete;
  RankCommit& operator=(const RankCommit&) = delete;

  // Works out the writes, by `deltas` from what ranks hold. Ranks have the changes staged afterwards. What `deltas`
  // uses stays as it is until the commit has ended.
  Status Prepare(const DeltasBetween& deltas);

  // The pause, after Prepare. OK: the ranks serve the version; those that did not resume in time are dropped. After an
  // error ranks that failed are dropped; the others go on with what they read where they were not written, and else
  // wait for the next commit. Once only.
  Status Run();

  const VersionRef& version() const { return version_.held; }
  uint64_t written_bytes() const;  // or staged
  // Made for this version and these bytes of it.
  bool IsOf(const VersionData& version) const {
    return version_.held == version.held && version_.data.data() == version.data.data();
  }

 private:
  struct Holders {                       // ranks that hold the same
    std::vector<uint32_t> ranks;         // places
    std::optional<DeltaWrites> changes;  // nullopt: they are written everything
  };

  Status Pause();
  Status Write();
  Status WriteAll(Holders& holders);
  void Serve();
  void GiveUp();
  void AwaitServing();
  void DropStaged() const;
  template <typename Call>
  Status ForEachPart(const Call& call);
  void Step(std::string_view step) const;

  RankGroup& group_;
  const VersionData version_;
  const std::shared_ptr<const PlacementPlan> plan_;
  const EngineRanksOptions& options_;
  WorkerPool pool_;               // its threads wait for ranks, which may be stopped: nothing else is to need them
  const Ranks ranks_;             // of the plan: those that are lost meanwhile too
  std::vector<bool> takes_part_;  // by place
  std::vector<Holders> holders_;  // those that are to be written
};

}  // namespace lockstep::engine

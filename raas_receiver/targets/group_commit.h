// GroupCommit: one commit of a version into the memory of all ranks of an engine, in two phases (FORMAT.md, "A
// commit").
//
//   Prepare() --> Prepared --(Hold)--> Held --(Write)--> Written --(the page's word)--> Committed --(Serve)--> Served
//                    |                  |                   |
//                    +------------------+-------------------+--(a rank is lost, or a write fails)--> Undone
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "raas_receiver/targets/group_members.h"
#include "raas_receiver/targets/group_writes.h"
#include "raas_receiver/targets/target_version.h"

namespace lockstep::targets {

// What a commit brings about: `version`, from `before` (nothing: it is not at hand), by `deltas` between what ranks
// hold. All of it stays as it is until the commit has ended.
struct CommitRequest {
  TargetVersion version;
  std::optional<TargetVersion> before;
  DeltasBetween deltas;
};

class GroupCommit {
 public:
  // Brings `members` to the version, by a plan for its layout. `members`, `options` and `pool` outlive this. REQUIRES a
  // complete group with a page.
  GroupCommit(GroupMembers& members, CommitRequest request, std::shared_ptr<const placement::PlacementPlan> plan,
              const EngineTargetsOptions& options, WorkerPool& pool);
  // What ranks have at hand and have not written is forgotten.
  ~GroupCommit() { DropStaged(); }
  GroupCommit(const GroupCommit&) = delete;
  GroupCommit& operator=(const GroupCommit&) = delete;

  // Works out the writes. Ranks have the changes at hand afterwards.
  Status Prepare();

  // The pause, after Prepare. OK: the ranks serve the version; those that did not resume in time are dropped. After an
  // error ranks that failed are dropped, and the others serve what they did before; where their memory could not be
  // made that again they stay held, with the page EMPTY when they served nothing before, and else WRITING. Once only.
  Status Run();

  const Held& version() const { return request_.version.held; }
  uint64_t written_bytes() const { return writes_.written_bytes(); }

 private:
  struct PageContent {
    EngineState state;
    Held serving;
  };

  void ForgetOutdated();
  void DropStaged() const;

  Status Hold();
  Status Write();
  void Serve(const Held& held);
  void AwaitServing();

  void Undo();
  Status WriteBack(const Held& served);
  HeldByRank HeldAfterWrites(const Held& served) const;

  void Step(std::string_view step) const;

  GroupMembers& members_;
  const CommitRequest request_;
  const std::shared_ptr<const placement::PlacementPlan> plan_;
  const EngineTargetsOptions& options_;
  WorkerPool& pool_;
  const std::vector<std::shared_ptr<RankLink>> ranks_;  // of the plan: those that are lost meanwhile too
  HeldByRank held_;                                     // what the ranks held before
  GroupWrites writes_;                                  // those of the pause
  std::optional<PageContent> page_before_;              // once the page says WRITING
};

}  // namespace lockstep::targets

// RankGroup: the ranks of an engine on this host that share one copy of the model: which are there, the plan of where
// the model lies in their memory, and one commit after the other (rank_commit.h).
//
//   a rank    absent --(Join)--> newcomer --(ATTACHED)--> attached --(it is lost, or refused)--> absent
//   a group   incomplete --(the last rank joins)--> complete --(Prepare)--> prepared --(Commit, Abandon)--> complete
//
// A group that loses a rank is incomplete. Threads: one at a time.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/engine/placement/plan/placement_plan.h"
#include "raas_receiver/engine/ranks/rank_commit.h"
#include "raas_receiver/engine/ranks/rank_connection.h"
#include "raas_receiver/engine/ranks/ranks_types.h"

namespace lockstep::engine {

// A rank that was dropped.
struct LostRank {
  std::string group;
  uint32_t rank = 0;
  pid_t pid = 0;
  VersionRef read;    // or what it goes on with; nothing: nothing
  bool left = false;  // its connection ended; it may attach again
};

class RankGroup {
 public:
  // `options` outlives this. The group has the name, world and incarnation of `first`, which has yet to Join.
  RankGroup(const EngineRanksOptions& options, const RankConnection& first);

  const std::string& name() const { return name_; }
  size_t world() const { return ranks_.size(); }  // that attach to this receiver
  size_t attached() const { return present().size(); }
  bool empty() const { return attached() == 0; }
  bool complete() const { return attached() == world(); }
  const Ranks& ranks() const { return ranks_; }  // by place; null: not there
  Ranks present() const;
  // Whether all ranks are there, and at `held`.
  bool At(const VersionRef& held) const;
  RankGroupReport Describe() const;

  // Takes a rank, which Prepare answers once all are there. An error is why it must be refused: kBadData for another
  // world than the group's; kState for another incarnation while ranks are attached, for a place that is taken, or for
  // a description that was made for another layout than `layout`. A rank in that place is dropped if its connection
  // has ended.
  Status Join(std::shared_ptr<RankConnection> rank, const model::ModelLayout& layout);
  // Drops the ranks whose connection has ended. Returns whether there were any.
  bool DropGone();
  // The ranks that were lost since the last call.
  std::vector<LostRank> TakeLost() { return std::exchange(lost_, {}); }
  // Calls every rank that is there, drops those where that fails, and returns the first error.
  template <typename Call>
  Status ForEach(const Call& call);

  // As EngineRanks' calls of these names, for this group. An incomplete group, and one with a rank that is asleep, has
  // nothing to prepare. Prepare refuses ranks that do not fit the others.
  Status Prepare(const CommitRequest& request);
  bool prepared() const { return commit_ != nullptr && !report_.apart; }
  Status Commit();
  // Says that this receiver has come so far with `version`, and waits until the engine's other receivers have.
  // kAborted: they do not in time, or went another way; or a rank is missing here, and this receiver has not come so
  // far.
  Status Agree(AgreeStep step, const VersionRef& version);
  void Abandon() { commit_.reset(); }
  Status Verify(const VersionData& version);
  void Doubt();

 private:
  Status MakeRoom(const RankConnection& rank);
  void Drop(size_t place, const Status& why);
  void Refuse(size_t place, const Status& why);
  void Lose(size_t place, bool left);
  void Forget(size_t place);
  Status Welcome();
  bool awake() const;  // all ranks are there, and none is asleep
  Status TryPrepare(const CommitRequest& request);
  bool SomeWait(const CommitRequest& request) const;
  Status CatchUp(const CommitRequest& request);
  Status Plan(const CommitRequest& request, const model::ModelLayout& layout);
  Status PlanFor(const model::ModelLayout& layout);
  Status Compile(const model::ModelLayout& layout);
  Status RefuseOtherLayouts(const model::ModelLayout& layout);
  void SetUnused(std::vector<std::string> unused);
  Status CheckClaims(const CommitRequest& request);
  Status Failed(Status status);

  const EngineRanksOptions& options_;
  const std::string name_;
  const std::string incarnation_;
  const uint32_t world_;              // of all receivers of the engine
  const std::vector<uint32_t> here_;  // the ranks that attach to this one
  Ranks ranks_;
  std::vector<LostRank> lost_;
  uint64_t changes_ = 0;                       // ranks that came or went so far
  std::shared_ptr<const PlacementPlan> plan_;  // null: none was compiled yet
  LayoutDigest plan_layout_;                   // what plan_ is for,
  uint64_t plan_changes_ = 0;                  // and after how many changes
  // Prepared. Where other receivers do not hold the version yet, the next Prepare of it goes on with this one.
  std::unique_ptr<RankCommit> commit_;
  uint64_t commit_changes_ = 0;  // after how many changes it was made
  RankGroupReport report_;       // without what Describe looks up
};

// Logs that a rank is refused: once a minute for each reason, since it tries again.
void LogRefused(const std::string& model, const RankConnection& rank, const Status& why);

template <typename Call>
Status RankGroup::ForEach(const Call& call) {
  Status first;
  for (size_t place = 0; place < ranks_.size(); ++place) {
    if (!ranks_[place]) continue;
    const Status status = call(*ranks_[place]);
    if (status.ok()) continue;
    Drop(place, status);
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace lockstep::engine

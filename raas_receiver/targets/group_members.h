// GroupMembers: the ranks of one start of an engine: which are there, and which were answered.
//
//   absent --(Join)--> newcomer --(Welcome)--> attached
//      ^                  |                       |
//      +------------------+-(it is lost, refused)-+
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "raas_receiver/targets/group_writes.h"
#include "raas_receiver/targets/rank_connection.h"

namespace lockstep::targets {

// A rank that was dropped.
struct LostRank {
  std::string engine;
  uint32_t rank = 0;
  pid_t pid = 0;
  VersionRef read;    // or what it goes on with; nothing: nothing
  bool left = false;  // its connection ended; it may attach again
};

class GroupMembers {
 public:
  // For ranks of `model` with the engine, world and incarnation of `first`, which has yet to Join.
  GroupMembers(std::string model, const RankConnection& first);

  const std::string& engine() const { return engine_; }
  size_t world() const { return ranks_.size(); }
  size_t attached() const { return present().size(); }
  bool complete() const { return attached() == world(); }
  EngineRanks ranks() const { return ranks_; }  // by rank; null: not there
  std::vector<std::shared_ptr<RankConnection>> present() const;
  uint64_t changes() const { return changes_; }  // ranks that came or went so far

  // Why `rank` must be refused: kBadData for another world than the group's, kState for another incarnation while ranks
  // are attached, or a place that is taken. A rank in that place is dropped if its connection has ended.
  Status MakeRoom(const RankConnection& rank);
  // REQUIRES MakeRoom.
  void Join(std::shared_ptr<RankConnection> rank);
  // Ends the connection of a rank, and forgets it.
  void Drop(size_t rank, const Status& why);
  // The same, with REFUSED.
  void Refuse(size_t rank, const Status& why);
  // The ranks that were dropped since the last call.
  std::vector<LostRank> TakeLost() { return std::exchange(lost_, {}); }
  // Drops the ranks whose connection has ended, which is not logged. Returns whether there were any.
  bool DropGone();
  // Calls every rank that is there, drops those where that fails, and returns the first error.
  template <typename Call>
  Status ForEach(const Call& call);

  // Newcomers are the ranks that joined since the last Welcome, which answers them ATTACHED. An error is of a rank that
  // was dropped.
  bool newcomer(size_t rank) const { return newcomers_[rank]; }
  Status Welcome();

 private:
  void Lose(size_t rank, bool left);
  void Forget(size_t rank);

  const std::string model_;
  const std::string engine_;
  const std::string incarnation_;
  std::vector<std::shared_ptr<RankConnection>> ranks_;
  std::vector<bool> newcomers_;
  std::vector<LostRank> lost_;
  uint64_t changes_ = 0;
};

// That a rank is refused: once a minute for each reason, since it tries again.
void LogRefused(const std::string& model, const RankConnection& rank, const Status& why);

template <typename Call>
Status GroupMembers::ForEach(const Call& call) {
  Status first;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank]) continue;
    const Status status = call(*ranks_[rank]);
    if (status.ok()) continue;
    Drop(rank, status);
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace lockstep::targets

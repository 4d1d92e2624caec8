// EngineRanks: the ranks of one engine, in groups, each of which is brought to a version as one.
//
// Two phases. Prepare() works out the writes, and has the ranks stage them, while the engine serves. Commit() is the
// pause: PAUSE, WRITE, SERVE. Afterwards all ranks of a group read the version; or, where a rank was lost, each reads
// what it read before or waits, and the next Prepare and Commit go on from there. Other groups are not concerned.
//
// Threads: ranks attach from the server's threads; Rest, Prepare, Commit, Abandon and Verify are the engine's. Attached
// ranks join their group in Prepare. Rest drops the ranks that have gone. What is asked of any thread looks at the
// connections themselves: a group that lacks a rank is at no version, also while a commit is under way.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/os/unique_fd.h"
#include "raas_receiver/engine/ranks/rank_connection.h"
#include "raas_receiver/engine/ranks/ranks_types.h"

namespace lockstep::engine {

class RankGroup;
struct LostRank;

class EngineRanks {
 public:
  using Clock = std::chrono::steady_clock;

  explicit EngineRanks(EngineRanksOptions options);
  // Ranks that are attached see their connection end.
  ~EngineRanks();

  // Takes over a rank that has sent ATTACH. The next Prepare answers REFUSED, or ATTACHED once its group is complete.
  void Attach(std::shared_ptr<RankConnection> rank);
  // `changed` is called, by the engine's thread or the server's, after a rank came, or one that went was dropped.
  void SetChanged(std::function<void()> changed);

  std::vector<RankGroupReport> Describe() const;
  // Which ranks are not there and since when, where that is longer than they may take to attach again; nothing: all
  // are.
  struct Absence {
    std::string text;
    int64_t since_unix_ns = 0;
  };
  std::optional<Absence> absence() const;
  // No rank is attached, or waits to be.
  bool empty() const;
  // Whether there are groups, all of them are complete and at `held`, and no rank waits. Never at nothing.
  bool AllAt(const VersionRef& held) const;
  // Whether a complete group is not wholly at `held`, or some rank waits to be answered. Incomplete groups wait for
  // their ranks, and those with a rank that is asleep until it wakes.
  bool Behind(const VersionRef& held) const;
  // Whether ranks are attached, and each reads some version.
  bool AllRead() const;
  // Whether some rank reads `held`; or may, for ranks that were lost or that outlived another receiver come back soon.
  bool Reads(const VersionRef& held) const;
  // When those that are not back by then are not waited for any more.
  Clock::time_point ranks_back_by() const;
  // Whether a group could not go on since the engine's receivers on other hosts had not come as far, and what they
  // said; kNo where one group was told that.
  std::optional<Agreement> apart() const;
  // Whether a rank went since the last Prepare began.
  bool lost() const;
  // The connections of the ranks that have joined their groups.
  Ranks members() const;
  // Ends a Rest.
  void Wake() const;

  // --- the engine's thread ---
  // Waits until a rank comes or goes, Wake is called, or `timeout` is over; then drops the ranks that have gone.
  void Rest(std::chrono::milliseconds timeout);
  // Answers waiting ranks, compiles plans, and works out the writes that bring every complete group to `version`, which
  // it then holds for Commit. Where some ranks read `before` and others wait, those come to it first. An error is of
  // the first group that failed; the others are prepared all the same. It is why a rank was refused where nothing is
  // prepared, and not all is at `version`. What is prepared must be followed by Commit or Abandon; the versions' data
  // and what `deltas` uses stay as they are until then.
  Status Prepare(const CommitRequest& request);
  // Whether there is anything to commit.
  bool prepared() const;
  // Brings the prepared groups to the version. The first error is answered; of a group that failed each rank reads what
  // it read, or waits.
  Status Commit();
  // Says that all ranks here serve `held`, and waits until those of other hosts do. Their server may run then.
  Status AgreeServed(const VersionRef& held);
  // Drops what Prepare worked out.
  void Abandon();
  // Answers waiting ranks, compares every group's memory with `version`, and answers how many groups there are.
  // kCorrupt names the group and rank that differs, which is not at that version any more; kState the group that
  // serves another version, is asleep or lacks a rank.
  Result<size_t> Verify(const VersionData& version);
  // Refuses waiting ranks that do not fit a version with `layout`, or their server; the others join their groups. Where
  // the server does not answer, its ranks wait on, and the error says why.
  Status Admit(const model::ModelLayout& layout);
  // Ranks may hold something else than was written: none is known to hold a version any more. The next Prepare compares
  // what they held, where it has that version, and writes those wholly that differ.
  void Doubt();

 private:
  Ranks Connections() const LS_REQUIRES(mutex_);
  void SettleLosses() LS_REQUIRES(mutex_);
  void LogLost() LS_REQUIRES(mutex_);
  bool DropGone() LS_REQUIRES(mutex_);
  bool MemberGone() const LS_REQUIRES(mutex_);
  bool Lacks(const RankGroupReport& group) const LS_REQUIRES(mutex_);
  void UpdateViews(bool settled) LS_REQUIRES(mutex_);
  void Update();
  template <typename Call>
  Status CallGroups(const Call& call);
  Status AdmitWaiting(const model::ModelLayout& layout, Status* refused = nullptr);
  Status CheckPurpose(const RankConnection& rank) const;
  Status CheckServer(const RankConnection& rank, const std::vector<std::string>& incarnations) const;

  const EngineRanksOptions options_;
  const Clock::time_point started_ = Clock::now();

  mutable Mutex mutex_;
  bool lost_ LS_GUARDED_BY(mutex_) = false;  // a rank was, since the last Prepare began
  std::function<void()> changed_ LS_GUARDED_BY(mutex_);
  Ranks waiting_ LS_GUARDED_BY(mutex_);
  size_t admitting_ LS_GUARDED_BY(mutex_) = 0;                  // taken out of it, and not in views_ yet
  std::map<std::string, std::unique_ptr<RankGroup>> groups_;    // by name; the engine's thread's
  std::vector<RankGroupReport> settled_ LS_GUARDED_BY(mutex_);  // views_ after the last call
  std::vector<RankGroupReport> views_ LS_GUARDED_BY(mutex_);    // the groups, as other threads see them,
  int64_t empty_since_unix_ns_ LS_GUARDED_BY(mutex_);           // since when there is none,
  Ranks members_ LS_GUARDED_BY(mutex_);                         // and their ranks
  std::map<VersionRef, Clock::time_point> back_by_
      LS_GUARDED_BY(mutex_);  // what lost ranks read, and until when they may come back
  std::vector<std::pair<LostRank, Clock::time_point>> left_
      LS_GUARDED_BY(mutex_);  // likewise those that were not logged as lost

  const os::UniqueFd wake_;
};

}  // namespace lockstep::engine

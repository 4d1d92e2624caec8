// The delta that is being made right now, for receivers that want its blocks before it is whole.
//
// The maker (ModelPublisher) begins a delta with each draft, adds blocks as the delta engine finishes them, and ends
// it: sealed once the version is committed and compared, or aborted. Readers (lanes) get what is new and are woken;
// the maker waits for none of them. Blocks are shared, so that any number of readers costs no memory.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/payload/payload.h"
#include "trainer_agent/run/wake_list.h"

namespace lockstep::run {

// One delta in the making. Thread-safe.
class StreamingDelta {
 public:
  StreamingDelta(Version base, Version target) : base_(base), target_(target) {}

  Version base() const { return base_; }
  Version target() const { return target_; }

  // --- the maker; without effect after an end ---
  void Add(std::shared_ptr<const payload::DeltaBlock> block);
  void Seal();
  void Abort(Status why);  // REQUIRES !why.ok()
  // As Abort, but also of a sealed delta. Called when readers are too slow for the memory that the delta takes.
  void Drop(Status why);

  // --- readers ---
  struct Update {
    std::vector<std::shared_ptr<const payload::DeltaBlock>>
        blocks;           // the next ones, in the order of making; some hundred at most
    bool sealed = false;  // these are the last
    Status aborted;       // not OK: the reader must discard every block of the delta
  };
  Update Since(size_t seen) const;
  // Has the maker call `wake` once Since(seen) is not empty. False, and `wake` is never called: it is not empty now.
  bool WakeOnUpdate(size_t seen, std::weak_ptr<const void> reader, Wake wake);

 private:
  void End(Status aborted, bool again);
  bool HasUpdate(size_t seen) const LS_REQUIRES(mutex_) { return ended_ || blocks_.size() > seen; }

  const Version base_;
  const Version target_;
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<const payload::DeltaBlock>> blocks_ LS_GUARDED_BY(mutex_);
  bool ended_ LS_GUARDED_BY(mutex_) = false;
  Status aborted_ LS_GUARDED_BY(mutex_);
  WakeList waiting_ LS_GUARDED_BY(mutex_);
};

// The streaming deltas of one run. Thread-safe.
class DeltaFeed {
 public:
  // --- the maker ---
  // Begins the delta that follows `base`, the newest version. Aborts the delta before it if that has not ended.
  std::shared_ptr<StreamingDelta> Begin(Version base, Version target);
  // Called when `newest` is served, or remains the newest after a draft was aborted. No delta is being made then. Drops
  // the delta that led to the version before the last one, so that slow readers keep two deltas alive at most.
  void SetNewest(Version newest);
  // The run is over: nothing more will be made.
  void End();
  // Whether there are followers.
  bool followed() const;

  // --- readers ---
  // Returns a follower: the run is followed while one lives.
  std::shared_ptr<const void> Follow();

  // The delta that starts at `base` and is being made; null while it has not begun. kState when it will not be made:
  // `base` is not the newest version.
  Result<std::shared_ptr<StreamingDelta>> Find(Version base) const;
  // Has the maker call `wake` once Find(base) answers another than null. False: Find does so now.
  bool WakeWhenBegun(Version base, std::weak_ptr<const void> reader, Wake wake);

 private:
  bool Waits(Version base) const LS_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Version newest_ LS_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<StreamingDelta> delta_ LS_GUARDED_BY(mutex_);
  std::deque<std::weak_ptr<StreamingDelta>> sealed_ LS_GUARDED_BY(mutex_);  // that may have readers yet, oldest first
  std::weak_ptr<const void> follower_ LS_GUARDED_BY(mutex_);                // that all followers share
  WakeList waiting_ LS_GUARDED_BY(mutex_);
};

}  // namespace lockstep::run

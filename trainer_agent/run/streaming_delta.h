// The delta that is being made right now, for receivers that want its blocks before it is whole.
//
// The maker (ModelPublisher) begins a delta with each draft, adds blocks as the delta engine finishes them, and ends
// it: sealed once the version is committed and compared, or aborted. Readers (lanes) get what is new and are woken;
// the maker waits for none of them. Blocks are shared, so that any number of readers costs no memory.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/payload/payload.h"

namespace lockstep::run {

// WakeList: the readers to wake, each once. Add() drops readers that are gone, so that the list stays as short as there
// are readers. Not thread-safe: the owner's mutex guards it.
class WakeList {
 public:
  void Add(std::weak_ptr<void> reader, std::function<void()> wake);
  // Empties the list and returns its callbacks. The caller must call them without the owner's mutex.
  std::vector<std::function<void()>> Take();

 private:
  struct Sleeper {
    std::weak_ptr<void> reader;
    std::function<void()> wake;
  };
  std::vector<Sleeper> sleepers_;
  size_t sweep_at_ = 64;
};

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
  // Calls `wake` once, as soon as Since(seen) is not empty: at once, or later on a thread of the maker. `wake` must not
  // block. It may still be called after `reader` has expired.
  void WakeOnUpdate(size_t seen, std::weak_ptr<void> reader, std::function<void()> wake);

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
  // While it lives, the run is followed.
  class Follower {
   public:
    explicit Follower(DeltaFeed* feed);
    ~Follower();
    Follower(const Follower&) = delete;
    Follower& operator=(const Follower&) = delete;

   private:
    DeltaFeed* const feed_;
  };

  // The delta that starts at `base` and is being made; null while it has not begun. kState when it will not be made:
  // `base` is not the newest version.
  Result<std::shared_ptr<StreamingDelta>> Find(Version base) const;
  // Calls `wake` once, as soon as Find(base) answers another than null; as StreamingDelta::WakeOnUpdate.
  void WakeWhenBegun(Version base, std::weak_ptr<void> reader, std::function<void()> wake);

 private:
  bool Waits(Version base) const LS_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Version newest_ LS_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<StreamingDelta> delta_ LS_GUARDED_BY(mutex_);
  std::deque<std::weak_ptr<StreamingDelta>> sealed_ LS_GUARDED_BY(mutex_);  // that may have readers yet, oldest first
  size_t followers_ LS_GUARDED_BY(mutex_) = 0;
  WakeList waiting_ LS_GUARDED_BY(mutex_);
};

}  // namespace lockstep::run

// The delta that is being made right now, for receivers that want its blocks before it is whole.
//
// The maker (the publish side) begins a delta with each draft, adds blocks as the delta engine finishes them, and ends
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

namespace lockstep::store {

// The readers to be woken, each once. Those that are gone are dropped, so that it stays as short as there are
// readers. Guarded by its owner.
class WakeList {
 public:
  void Add(std::weak_ptr<void> reader, std::function<void()> wake);
  // Empties the list; they are to be called without the owner's lock.
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
  // The same, also of a sealed one: its readers are too slow for the memory that it takes.
  void Drop(Status why);

  // --- readers ---
  struct Update {
    std::vector<std::shared_ptr<const payload::DeltaBlock>>
        blocks;           // the next ones, in the order of making; some hundred at most
    bool sealed = false;  // these are the last
    Status aborted;       // not OK: no block counts, nor those before
  };
  Update Since(size_t seen) const;
  // Calls `wake` once, as soon as Since(seen) is not empty: now, or later on a thread of the maker, which must not be
  // held up. It may be called when its reader is gone, which `reader` shows.
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
  // `base` is the newest version; a delta that did not end is aborted.
  std::shared_ptr<StreamingDelta> Begin(Version base, Version target);
  // `newest` is committed and served, or what remained when a draft was aborted: nothing is being made. What led to
  // the version before the last one is dropped, so that slow readers hold two deltas at most, however many they are.
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

}  // namespace lockstep::store

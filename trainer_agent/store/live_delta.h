// The delta that is being made right now, for receivers that want its blocks before it is whole.
//
// The maker (the publish side) begins a delta with each draft, adds blocks as the delta engine finishes them, and ends
// it: sealed once the version is committed and compared, or given up. Readers (lanes) take what is new and are woken;
// nobody is ever waited for. Blocks are shared, so that any number of readers costs no memory.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/payload/payload.h"

namespace lockstep {

// Who is to be woken, each once. Those whose reader is gone are forgotten, so that it stays as short as there are
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
class LiveDelta {
 public:
  LiveDelta(Version base, Version target) : base_(base), target_(target) {}

  Version base() const { return base_; }
  Version target() const { return target_; }

  // --- the maker; without effect after an end ---
  void Add(std::shared_ptr<const DeltaBlock> block);
  void Seal();
  void GiveUp(Status why);  // REQUIRES !why.ok()
  // The same, also of a sealed one: who still reads it is too slow for the memory that it takes.
  void Forget(Status why);

  // --- readers ---
  struct News {
    std::vector<std::shared_ptr<const DeltaBlock>>
        blocks;           // the next ones in the order of making, some hundred at most
    bool sealed = false;  // with these, all blocks were told
    Status given_up;      // not OK: nothing that was told counts
  };
  News Since(size_t seen) const;
  // Calls `wake` once, as soon as Since(seen) has something to tell: now, or later on a thread of the maker, which must
  // not be held up. It may be called when its reader is gone; `reader` tells that it is.
  void WakeWhenNews(size_t seen, std::weak_ptr<void> reader, std::function<void()> wake);

 private:
  bool HasNews(size_t seen) const { return ended_ || blocks_.size() > seen; }

  const Version base_;
  const Version target_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const DeltaBlock>> blocks_;
  bool ended_ = false;
  Status given_up_;
  WakeList waiting_;
};

// What is live in one run. Thread-safe.
class LiveFeed {
 public:
  // --- the maker ---
  // `base` is the newest version; a delta that did not end is given up.
  std::shared_ptr<LiveDelta> Begin(Version base, Version target);
  // `newest` is committed and served, or what remained when a draft was given up: nothing is being made. What led to
  // the version before the last one is forgotten, so that slow readers hold two deltas at most, however many they are.
  void SetNewest(Version newest);
  // The run is over: nothing more will be made.
  void End();
  // Whether anybody is here.
  bool followed() const;
  // The level that suits those who are here.
  CodecLevel level() const;

  // --- readers ---
  // While it lives, somebody on a link for `level` follows the run.
  class Follower {
   public:
    Follower(LiveFeed* feed, CodecLevel level);
    ~Follower();
    Follower(const Follower&) = delete;
    Follower& operator=(const Follower&) = delete;

   private:
    LiveFeed* const feed_;
    const std::multiset<CodecLevel>::iterator at_;
  };

  // The delta that starts at `base` and is being made; null while nobody has begun it. kState when it will not be made:
  // `base` is not the newest version.
  Result<std::shared_ptr<LiveDelta>> Find(Version base) const;
  // Calls `wake` once, as soon as Find(base) answers another than null; as LiveDelta::WakeWhenNews.
  void WakeWhenBegun(Version base, std::weak_ptr<void> reader, std::function<void()> wake);

 private:
  bool Waits(Version base) const;  // REQUIRES mutex_

  mutable std::mutex mutex_;
  Version newest_ = 0;
  std::shared_ptr<LiveDelta> delta_;
  std::deque<std::weak_ptr<LiveDelta>> sealed_;  // that may have readers yet, oldest first
  std::multiset<CodecLevel> followers_;
  WakeList waiting_;
};

}  // namespace lockstep

// DeltaStore: keeps the deltas of one run that receivers may still need, within a byte budget.
//
// The deltas form one chain that ends at the newest version. Each delta is one immutable Payload, which any number of
// pulls share. With a directory, the deltas are files on the agent's tmpfs: the agent that follows a killed one loads
// them again. A delta that leaves the chain is dropped: its file goes, and pulls that hold the delta keep its payload
// alive. The memory of dropped deltas is in no budget, and a pull may be as slow as it likes: so TakeBack() bounds it.
#pragma once

#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/model/manifest.h"
#include "common/os/unique_fd.h"
#include "common/payload/payload.h"

namespace lockstep::run {

struct StoreOptions {
  std::string directory;  // empty: in memory only
  uint64_t retain_bytes = 2ull << 30;
};

// StoredDelta: one delta, as the store and pulls share it. Thread-safe.
class StoredDelta {
 public:
  explicit StoredDelta(std::shared_ptr<const payload::Payload> payload) : payload_(std::move(payload)) {}

  // Null once the store has taken the payload back.
  std::shared_ptr<const payload::Payload> payload() const {
    MutexLock lock(mutex_);
    return payload_;
  }

 private:
  friend class DeltaStore;
  void TakeBack() {
    MutexLock lock(mutex_);
    payload_.reset();
  }

  mutable Mutex mutex_;
  std::shared_ptr<const payload::Payload> payload_ LS_GUARDED_BY(mutex_);
};

// Thread-safe.
class DeltaStore {
 public:
  using Clock = std::chrono::steady_clock;
  // Consecutive deltas, oldest first. Their holder keeps the payloads alive until TakeBack().
  using Chain = std::vector<std::shared_ptr<StoredDelta>>;
  static constexpr std::chrono::minutes kMaxDroppedAge{10};

  DeltaStore(std::shared_ptr<const model::ModelLayout> layout, StoreOptions options);

  // Loads the files of an earlier agent: the longest chain of whole deltas that ends at `newest`. Removes all other
  // files of the directory.
  void Load(const model::Manifest& newest);

  // Assembles a delta from `blocks`, appends it to the chain and drops old deltas over the budget. Drops the whole
  // chain before when the delta does not follow the last one. Where the tmpfs is full, Add drops old deltas; when all
  // are gone, Add keeps the new one on the heap.
  Status Add(const payload::PayloadIdentity& identity, const std::vector<const payload::DeltaBlock*>& blocks);

  // Returns the deltas that lead from `base` to `last`, or as far towards it as the chain goes. kNewest as `last` means
  // the end of the chain. Returns an empty chain when no delta starts at `base`, or when the deltas together are not
  // below `full_bytes`.
  Chain RouteFrom(Version base, Version last, uint64_t full_bytes) const;
  static constexpr Version kNewest = std::numeric_limits<Version>::max();

  // As RouteFrom, whatever the deltas' size. kState when the deltas from `base` on are no longer retained.
  Result<Chain> ChainFrom(Version base, Version last) const;

  // Returns how large a delta may be to be worth making: the model's size while there is a pin, for full pulls need the
  // delta to catch up; else at most the budget.
  uint64_t MaxDeltaBytes() const;

  // A pin keeps deltas from `version` on while it lives: the store then evicts them only beyond twice the budget and
  // one model's size. A full pull has a pin, because it needs those deltas to catch up. REQUIRES the store to outlive
  // the pin.
  std::shared_ptr<const void> PinFrom(Version version);

  // Opens the delta's file for reading. The file never changes, and the descriptor stays good after the delta was
  // dropped. kState when the delta is on the heap, or was dropped.
  Result<os::UniqueFd> OpenFile(const payload::Payload& payload) const;

  payload::DeltaChain Retained() const;
  // The bytes of dropped deltas that pulls still hold.
  uint64_t DroppedBytes() const;
  // Takes the payloads of dropped deltas back from the pulls that hold them: of all that were dropped kMaxDroppedAge
  // before `now`, then of the oldest others until the rest fits in `retain_bytes`. The agent calls this now and then.
  void TakeBack(Clock::time_point now);
  // Returns the facts of the delta that leads to `target`, or of the newest for kNewest; zeros when there is none.
  struct StepFacts {
    uint64_t data_bytes = 0;
    double density = 0;  // the share of elements that it changed
  };
  StepFacts StepTo(Version target) const;

  // Drops every delta and removes its file. Called when the run is over.
  void Discard();

 private:
  std::string PathOf(Version base, Version target) const;
  std::shared_ptr<const payload::Payload> LoadFile(const std::string& path) const;
  struct DroppedDelta {
    std::weak_ptr<StoredDelta> delta;  // expired once no pull holds it
    Clock::time_point since;
  };

  Result<std::shared_ptr<const payload::Payload>> AssembleLocked(const payload::PayloadIdentity& identity,
                                                                 const std::vector<const payload::DeltaBlock*>& blocks)
      LS_REQUIRES(mutex_);
  Chain StepsLocked(Version base, Version last) const LS_REQUIRES(mutex_);
  void EvictLocked() LS_REQUIRES(mutex_);
  void RemoveOldestLocked() LS_REQUIRES(mutex_);
  uint64_t RetainedBytesLocked() const LS_REQUIRES(mutex_);
  uint64_t DroppedBytesLocked() const LS_REQUIRES(dropped_mutex_);
  bool PinnedLocked(Version version) const LS_REQUIRES(mutex_);

  const std::shared_ptr<const model::ModelLayout> layout_;
  const StoreOptions options_;
  mutable Mutex mutex_;
  Chain chain_ LS_GUARDED_BY(mutex_);  // none of them is taken back
  std::vector<std::pair<Version, std::weak_ptr<const void>>> pins_ LS_GUARDED_BY(mutex_);
  mutable Mutex dropped_mutex_;  // taken after mutex_, which Add holds for as long as a delta is copied
  std::deque<DroppedDelta> dropped_ LS_GUARDED_BY(dropped_mutex_);  // in the order of dropping
};

}  // namespace lockstep::run

// DeltaStore: keeps the deltas of one run that receivers may still need, within a byte budget.
//
// The deltas form one chain that ends at the newest version. Each delta is one immutable Payload, which any number of
// pulls share. With a directory, the deltas are files on the agent's tmpfs: the agent that follows a killed one loads
// them again. A delta that leaves the chain is dropped (dropped_deltas.h): its file goes, and pulls that have its
// payload keep that alive.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/model/manifest.h"
#include "common/os/unique_fd.h"
#include "common/payload/payload.h"
#include "trainer_agent/run/dropped_deltas.h"

namespace lockstep::run {

struct StoreOptions {
  std::string directory;  // empty: in memory only
  uint64_t retain_bytes = 2ull << 30;
};

// Thread-safe.
class DeltaStore {
 public:
  DeltaStore(std::shared_ptr<const model::ModelLayout> layout, StoreOptions options);

  // Loads the files of an earlier agent: the longest chain of whole deltas that ends at `newest`. Removes all other
  // files of the directory.
  void Load(const model::Manifest& newest);

  // Assembles a delta from `blocks`, appends it to the chain and drops old deltas over the budget. Drops the whole
  // chain before when the delta does not follow the last one. Where the tmpfs is full, Add drops old deltas; when all
  // are gone, Add keeps the new one on the heap.
  Result<std::shared_ptr<const payload::Payload>> Add(const payload::PayloadIdentity& identity,
                                                      const std::vector<const payload::DeltaBlock*>& blocks);

  // Returns the deltas that lead from `base` to `last`, or as far towards it as the chain goes. kNewest as `last` means
  // the end of the chain. Returns an empty chain when no delta starts at `base`, or when the deltas together are not
  // below `full_bytes`.
  payload::DeltaChain RouteFrom(Version base, Version last, uint64_t full_bytes) const;
  static constexpr Version kNewest = std::numeric_limits<Version>::max();

  // As RouteFrom, whatever the deltas' size. kState when the deltas from `base` on are no longer retained.
  Result<payload::DeltaChain> ChainFrom(Version base, Version last) const;

  // Returns how large a delta may be to be worth making: the model's size while there is a pin, for full pulls need the
  // delta to catch up; else at most the budget.
  uint64_t MaxDeltaBytes() const;

  // A pin keeps deltas from `version` on while it lives: the store then evicts them only beyond twice the budget and
  // one model's size. A full pull has a pin, because it needs those deltas to catch up.
  class RetentionPin {
   public:
    RetentionPin(DeltaStore* store, Version version);
    ~RetentionPin();
    RetentionPin(const RetentionPin&) = delete;
    RetentionPin& operator=(const RetentionPin&) = delete;

   private:
    DeltaStore* const store_;
    const std::multiset<Version>::iterator at_;
  };
  std::unique_ptr<RetentionPin> PinFrom(Version version) { return std::make_unique<RetentionPin>(this, version); }

  // Opens the delta's file for reading. The file never changes, and the descriptor stays good after the delta was
  // dropped. kState when the delta is on the heap, or was dropped.
  Result<os::UniqueFd> OpenFile(const payload::Payload& payload) const;

  payload::DeltaChain Retained() const;
  // The dropped deltas that pulls still have. They stay within `retain_bytes` if the caller takes Overdue() back.
  const DroppedDeltas& dropped() const { return dropped_; }
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
  Result<std::shared_ptr<const payload::Payload>> AssembleLocked(const payload::PayloadIdentity& identity,
                                                                 const std::vector<const payload::DeltaBlock*>& blocks)
      LS_REQUIRES(mutex_);
  payload::DeltaChain StepsLocked(Version base, Version last) const LS_REQUIRES(mutex_);
  void EvictLocked() LS_REQUIRES(mutex_);
  void RemoveOldestLocked() LS_REQUIRES(mutex_);
  uint64_t RetainedBytesLocked() const LS_REQUIRES(mutex_);

  const std::shared_ptr<const model::ModelLayout> layout_;
  const StoreOptions options_;
  mutable Mutex mutex_;
  payload::DeltaChain chain_ LS_GUARDED_BY(mutex_);
  std::multiset<Version> pins_ LS_GUARDED_BY(mutex_);
  DroppedDeltas dropped_;
};

}  // namespace lockstep::run

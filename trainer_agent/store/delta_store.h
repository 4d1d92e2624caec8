// DeltaStore: the deltas of one run that receivers may still need, within a byte budget.
//
// The deltas form one chain that ends at the newest version. Each is one immutable Payload, served to any number of
// receivers. With a directory they are files on the agent's tmpfs, so that an agent that is killed finds them again.
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
#include "trainer_agent/store/pinned_deltas.h"

namespace lockstep::store {

struct StoreOptions {
  std::string directory;  // empty: in memory only
  uint64_t retain_bytes = 2ull << 30;
};

// Thread-safe.
class DeltaStore {
 public:
  DeltaStore(std::shared_ptr<const model::ModelLayout> layout, StoreOptions options);

  // Reads back the files of an earlier agent: of those that are whole, the longest chain that ends at `newest`. The
  // others are removed.
  void Load(const model::Manifest& newest);

  // Makes the delta that follows the last one and retains it. A full tmpfs costs old deltas first; when even that does
  // not help the delta is kept on the heap.
  Result<std::shared_ptr<const payload::Payload>> Add(const payload::PayloadIdentity& identity,
                                                      const std::vector<const payload::DeltaBlock*>& blocks);

  // The deltas from `base` to `last`, or to the newest that is older (kNewest: to that); empty when they are not
  // retained, or not below `full_bytes` together.
  payload::DeltaChain RouteFrom(Version base, Version last, uint64_t full_bytes) const;
  static constexpr Version kNewest = std::numeric_limits<Version>::max();

  // Every step from `base` to `last`. kState when some are gone.
  Result<payload::DeltaChain> ChainFrom(Version base, Version last) const;

  // How large a delta is worth making: while a full pull needs it to catch up, as large as the model; else the budget.
  uint64_t MaxDeltaBytes() const;

  // While it lives, deltas from `version` on outlive the byte budget, up to twice its size and a model's: a full pull
  // needs them to catch up.
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

  // The file of a delta, for reading; it never changes, and outlives its name. kState when there is none (any more):
  // what is kept on the heap has no file.
  Result<os::UniqueFd> OpenFile(const payload::Payload& payload) const;

  payload::DeltaChain Retained() const;
  // What is retained no more, but held: bounded by `retain_bytes` if pulls that hold it give Overdue() back.
  const PinnedDeltas& pinned() const { return pinned_; }
  // The step of the chain that led to `target`, or the newest step for kNewest; zeros: it is not retained.
  struct StepFacts {
    uint64_t data_bytes = 0;
    double density = 0;  // the share of elements that it changed
  };
  StepFacts StepTo(Version target) const;

  // The run is over: removes everything, files too.
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
  std::multiset<Version> holds_ LS_GUARDED_BY(mutex_);
  PinnedDeltas pinned_;
};

}  // namespace lockstep::store

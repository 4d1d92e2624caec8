// DeltaStore: the deltas of one run that receivers may still need, within a byte budget.
//
// The deltas form one chain that ends at the newest version. Each is one immutable Payload, served to any number of
// receivers; folded ones, and forms at a higher codec level than one was made at, are derived on request. With a
// directory the chain's are files on the agent's tmpfs, so that an agent that is killed finds them again.
#pragma once

#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/model/manifest.h"
#include "common/os/unique_fd.h"
#include "common/payload/payload.h"
#include "trainer_agent/store/derived_deltas.h"
#include "trainer_agent/store/pinned_deltas.h"

namespace lockstep::store {

struct StoreOptions {
  std::string directory;  // empty: in memory only
  uint64_t retain_bytes = 2ull << 30;
  uint64_t derived_bytes = 512ull << 20;  // for what is derived, on the heap
  // Folds and recodes; not the diff's pool, which a receiver must not hold up. Null: the chain as it was made.
  WorkerPool* fold_pool = nullptr;
};

// How to bring a receiver from one version to the newest.
struct DeltaRoute {
  payload::DeltaChain steps;  // empty: no deltas lead there, send full blocks
  bool folded = false;
  payload::CodecLevel level = payload::CodecLevel::kFast;  // all of it is coded at this one or higher

  uint64_t data_bytes() const;
  uint64_t changed_elements() const;
};

// Thread-safe.
class DeltaStore {
 public:
  DeltaStore(std::shared_ptr<const model::ModelLayout> layout, StoreOptions options);

  // Reads back the files of an earlier agent: of those that are whole, the longest chain that ends at `newest`. The
  // others are removed.
  void Load(const model::Manifest& newest);

  // Makes the delta that follows the last one and retains it, coded at `level`. A full tmpfs costs old deltas first;
  // when even that does not help the delta is kept on the heap.
  Result<std::shared_ptr<const payload::Payload>> Add(const payload::PayloadIdentity& identity,
                                                      payload::CodecLevel level,
                                                      const std::vector<const payload::DeltaBlock*>& blocks);

  // The route of fewest bytes from `base` to `last`, or to the newest that is older (kNewest: to that): one delta, the
  // chain, or its fold; none when that would not be below `full_bytes`. What has to be derived for that, a fold or a
  // form at `level`, is waited for; when it would take long, or `gone` says that nobody waits here any more, the chain
  // is served as it is.
  DeltaRoute RouteFrom(Version base, Version last, uint64_t full_bytes, payload::CodecLevel level,
                       const Gone& gone = {});
  static constexpr Version kNewest = std::numeric_limits<Version>::max();

  // Every step from `base` to `last`, unfolded. kState when some are gone.
  Result<payload::DeltaChain> ChainFrom(Version base, Version last) const;

  // How large a delta is worth making: while a full pull needs it to catch up, as large as the model; else the budget.
  uint64_t MaxDeltaBytes() const;

  // While it lives, deltas from `version` on outlive the byte budget, up to twice its size and a model's: a full pull
  // needs them to catch up.
  class Hold {
   public:
    Hold(DeltaStore* store, Version version);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    DeltaStore* const store_;
    const std::multiset<Version>::iterator at_;
  };
  std::unique_ptr<Hold> HoldFrom(Version version) { return std::make_unique<Hold>(this, version); }

  // The file of a delta, for reading; it never changes, and outlives its name. kState when there is none (any more):
  // derived ones, and what is kept on the heap, have no file.
  Result<os::UniqueFd> OpenFile(const payload::Payload& payload) const;

  // The chain first, then what was derived from it.
  payload::DeltaChain Retained() const;
  // What is retained no more, but held: bounded by `retain_bytes` if those who hold it give Overdue() back.
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
  struct Step {
    std::shared_ptr<const payload::Payload> payload;
    payload::CodecLevel level = payload::CodecLevel::kFast;  // that it was made at

    const payload::PayloadHeader& header() const { return payload->header(); }
  };
  std::string PathOf(Version base, Version target) const;
  std::shared_ptr<const payload::Payload> LoadFile(const std::string& path) const;
  Result<std::shared_ptr<const payload::Payload>> AssembleLocked(const payload::PayloadIdentity& identity,
                                                                 const std::vector<const payload::DeltaBlock*>& blocks);
  std::vector<Step> StepsLocked(Version base, Version last) const;
  void Fold(payload::CodecLevel level, const Gone& gone, DeltaRoute& route);
  void Raise(const std::vector<Step>& steps, payload::CodecLevel level, const Gone& gone, DeltaRoute& route);
  void EvictLocked();
  void RemoveOldestLocked();
  uint64_t RetainedBytesLocked() const;

  const std::shared_ptr<const model::ModelLayout> layout_;
  const StoreOptions options_;
  mutable std::mutex mutex_;
  std::deque<Step> chain_;
  std::multiset<Version> holds_;
  PinnedDeltas pinned_;
  DerivedDeltas derived_;  // since the newest was added
};

}  // namespace lockstep::store

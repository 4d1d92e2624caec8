// DerivedDeltas: what receivers need and the chain of deltas does not hold: folds of several, and forms at a higher
// codec level.
//
// Each is made once, on the pool, however many ask for it: they wait for it together, and different ones are made side
// by side. It is given up, between two blocks, as soon as none of them waits. What was made is kept within a budget of
// its own, in which what is being made counts as what it is made of; the oldest goes first.
#pragma once

#include <atomic>
#include <compare>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "common/base/worker_pool.h"
#include "common/payload/payload.h"
#include "trainer_agent/store/pinned_deltas.h"

namespace lockstep::store {

// Whether whoever asks has gone, and waits no longer; null: it never does. Called some times a second, on its thread.
using Gone = std::function<bool()>;

// Thread-safe.
class DerivedDeltas {
 public:
  using Payload = std::shared_ptr<const payload::Payload>;
  // Runs on the pool. kCancelled: it was unwanted.
  using Make = std::function<Result<Payload>(const payload::Unwanted& unwanted)>;

  // What is forgotten goes to `forgotten`. REQUIRES that and the pool, which is not used before Get(), to outlive this.
  DerivedDeltas(uint64_t budget_bytes, WorkerPool* pool, PinnedDeltas* forgotten)
      : budget_bytes_(budget_bytes), pool_(pool), forgotten_(forgotten) {}
  // REQUIRES nobody to be in Get(). Waits for what is being given up.
  ~DerivedDeltas();

  // What make() makes of `steps` at `level`, by this call or another. Null: serve the steps, because it would not be
  // smaller than they are, or has no room, or enough others are being made, or the caller has gone.
  Payload Get(payload::ChainView steps, payload::CodecLevel level, const Make& make, const Gone& gone);

  // Forgets everything made so far.
  void Clear();
  payload::DeltaChain Kept() const;

 private:
  struct Key {
    Version base = 0;
    Version target = 0;
    payload::CodecLevel level = payload::CodecLevel::kFast;
    auto operator<=>(const Key&) const = default;
  };
  struct Derived {
    std::atomic<size_t> waiting{0};
    uint64_t bytes = 0;     // of the budget
    uint64_t begun_at = 0;  // in the order of all
    bool ended = false;
    bool given_up = false;
    Payload payload;  // null: does not pay
  };

  std::shared_ptr<Derived> Join(const Key& key, payload::ChainView steps, const Make& make);
  bool MakeRoom(uint64_t bytes);
  void Forget(const Derived& derived);
  void End(const Key& key, uint64_t smaller_than, const Result<Payload>& made);

  const uint64_t budget_bytes_;
  WorkerPool* const pool_;
  PinnedDeltas* const forgotten_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::map<Key, std::shared_ptr<Derived>> all_;
  uint64_t begun_ = 0;
};

}  // namespace lockstep::store

// DroppedDeltas: the deltas that a store has dropped and that open pulls still serve. Their memory is in no budget, and
// a pull may be as slow as it likes. So this class counts their bytes, and tells the caller which to take back.
#pragma once

#include <chrono>
#include <deque>
#include <memory>

#include "common/base/mutex.h"
#include "common/payload/payload.h"

namespace lockstep::run {

// Thread-safe.
class DroppedDeltas {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::minutes kMaxAge{10};

  explicit DroppedDeltas(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // The store has dropped `payload`. This class does not keep it alive.
  void Add(const std::shared_ptr<const payload::Payload>& payload);
  uint64_t bytes() const;  // of all dropped deltas that some pull still has
  // The deltas that the caller must take back from pulls: all that were dropped kMaxAge before `now`, then the oldest
  // of the others until the rest fits in `max_bytes`.
  payload::DeltaChain Overdue(Clock::time_point now) const;

 private:
  struct DroppedDelta {
    std::weak_ptr<const payload::Payload> payload;  // expired once no pull has it
    Clock::time_point since;
  };

  const uint64_t max_bytes_;
  mutable Mutex mutex_;
  std::deque<DroppedDelta> dropped_ LS_GUARDED_BY(mutex_);  // in the order of dropping
};

}  // namespace lockstep::run

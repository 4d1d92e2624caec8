// PinnedDeltas: deltas that a store keeps no more and that pulls still hold. Their memory, on the tmpfs without a name,
// is in no budget, and a pull may be as slow as it likes: so they are counted, and taken back in time.
#pragma once

#include <chrono>
#include <deque>
#include <memory>

#include "common/base/mutex.h"
#include "common/payload/payload.h"

namespace lockstep::store {

// Thread-safe.
class PinnedDeltas {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::minutes kMaxAge{10};

  explicit PinnedDeltas(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // The store lets go of `payload`, which it had until now.
  void Add(const std::shared_ptr<const payload::Payload>& payload);
  uint64_t bytes() const;
  // Those that are to be taken back from the pulls that hold them: let go kMaxAge before `now`, and, while the others
  // are more than `max_bytes`, the first of them.
  payload::DeltaChain Overdue(Clock::time_point now) const;

 private:
  struct Pinned {
    std::weak_ptr<const payload::Payload> payload;  // gone once no pull holds it
    Clock::time_point since;
  };

  const uint64_t max_bytes_;
  mutable Mutex mutex_;
  std::deque<Pinned> pinned_ LS_GUARDED_BY(mutex_);  // let go first, first
};

}  // namespace lockstep::store

// RateLimit: how fast several senders together may send, as a bucket that may be overdrawn.
//
// A sender books what it is about to send and is given the time to wait first. So each gets its turn in the order of
// asking, none polls, and a long silence earns no more than a twentieth of a second's worth.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "common/base/mutex.h"

namespace lockstep::net {

// Thread-safe.
class RateLimit {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;

  // 0 bytes a second: no limit.
  explicit RateLimit(uint64_t bytes_per_s, Now now = Clock::now);

  // Books `bytes`, and answers how long to wait before sending them; 0: at once.
  Clock::duration Book(uint64_t bytes);
  // Gives back `bytes` that were booked and will not be sent: other senders wait less.
  void GiveBack(uint64_t bytes);

 private:
  Clock::duration Takes(uint64_t bytes) const;

  const uint64_t bytes_per_s_;
  const Now now_;
  Mutex mutex_;
  Clock::time_point free_at_ LS_GUARDED_BY(mutex_){};  // when all that is booked has been sent
};

}  // namespace lockstep::net

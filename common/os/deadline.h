// A moment by which something must have happened, in the form poll() wants it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace lockstep::os {

// A timeout that never comes. Only for waits that something else is sure to end (a shutdown, a wake).
inline constexpr std::chrono::milliseconds kForever{-1};

class Deadline {
 public:
  // `timeout` from now; kForever for no deadline.
  explicit Deadline(std::chrono::milliseconds timeout)
      : forever_(timeout < std::chrono::milliseconds::zero()), at_(Clock::now() + (forever_ ? kZero : timeout)) {}

  // The time left, as poll()'s timeout argument: 0 once passed, -1 for no deadline.
  int PollTimeoutMs() const {
    if (forever_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
  }
  // The time left; zero once passed. REQUIRES a deadline.
  std::chrono::milliseconds Left() const { return std::chrono::milliseconds(PollTimeoutMs()); }
  bool Passed() const { return !forever_ && Clock::now() >= at_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kZero{0};

  bool forever_;
  Clock::time_point at_;
};

}  // namespace lockstep::os

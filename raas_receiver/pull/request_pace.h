// RequestPace: how many requests a lane keeps outstanding, so that the pipe to the agent never drains and yet no lane
// hoards work that a faster one could do.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace lockstep::pull {

// A long link pays for more connections: each has a window and a slow start of its own, and a loss slows down only one.
inline constexpr std::chrono::microseconds kFarRoundTrip{5'000};
// On a near link one connection fills the wire; a few spread the copying over cores.
inline constexpr size_t kNearLanes = 4;

// Of one lane. Not thread-safe.
class RequestPace {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMost = 64;
  // Before the link is known: on a long one, what is asked for later comes a round trip later.
  static constexpr size_t kFirst = 8;

  explicit RequestPace(size_t least) : least_(least), outstanding_(std::max(least, kFirst)) {}

  // The answer to a request, of so many bytes, has ended.
  void Answered(uint64_t bytes, Clock::time_point now, std::chrono::microseconds round_trip) {
    const double seconds = std::chrono::duration<double>(now - last_).count();
    const bool first = last_ == Clock::time_point{};
    last_ = now;
    if (first || bytes == 0 || seconds <= 0) return;
    // A rate once seen is kept for some answers: what comes in spurts must be asked for as it comes.
    rate_ = std::max(rate_ * 0.9, static_cast<double>(bytes) / seconds);
    // A round trip's worth is on its way at any time; half as much again lets a connection that speeds up do so.
    const double requests =
        1.5 * rate_ * std::chrono::duration<double>(round_trip).count() / static_cast<double>(bytes);
    outstanding_ = least_ + static_cast<size_t>(std::min(std::ceil(requests), static_cast<double>(kMost - least_)));
  }

  size_t outstanding() const { return outstanding_; }

 private:
  const size_t least_;
  size_t outstanding_;
  double rate_ = 0;  // bytes per second
  Clock::time_point last_{};
};

}  // namespace lockstep::pull

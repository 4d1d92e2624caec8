// ScrubPace: how fast memory that is held is hashed again: all of it once in a round, a piece at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace lockstep {

// Used by one thread. Time in which its user did something else is made up for, of one round at most.
class ScrubPace {
 public:
  // `round`: in which all is hashed once, or longer where that would be more than 1 GiB a second; 0: nothing is.
  explicit ScrubPace(std::chrono::milliseconds round) : round_(round) {}

  // Until the next piece; an hour when there is none.
  std::chrono::milliseconds UntilDue() const {
    using std::chrono::milliseconds;
    if (round_ == milliseconds(0)) return std::chrono::hours(1);
    return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(due_ - Clock::now()));
  }
  bool due() const { return UntilDue().count() == 0; }

  // A piece of `bytes` of `all` has been looked at; 0: there was none.
  void Hashed(uint64_t bytes, uint64_t all) {
    using Seconds = std::chrono::duration<double>;
    const Clock::time_point now = Clock::now();
    const double of_all = bytes == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(all);
    const Seconds least{bytes == 0 ? 1.0 : static_cast<double>(bytes) / (1 << 30)};
    due_ = std::max(due_, now - round_) + std::chrono::ceil<Clock::duration>(of_all * Seconds(round_));
    due_ = std::max(due_, now + std::chrono::ceil<Clock::duration>(least));
  }

 private:
  using Clock = std::chrono::steady_clock;

  const std::chrono::milliseconds round_;
  Clock::time_point due_ = Clock::now();
};

}  // namespace lockstep

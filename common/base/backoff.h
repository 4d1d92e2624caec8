// How long to wait after the nth failure in a row: exponential, capped, with jitter so that a fleet does not come back
// at once.
#pragma once

#include <algorithm>
#include <chrono>
#include <random>

namespace lockstep {

// Used by one thread.
class Backoff {
 public:
  explicit Backoff(std::chrono::milliseconds longest = std::chrono::seconds(10),
                   std::chrono::milliseconds first = std::chrono::milliseconds(100))
      : first_(first), longest_(longest), next_(first), random_(std::random_device()()) {}

  void Reset() { next_ = first_; }

  // Between half of the present wait and all of it; the next one is twice as long.
  std::chrono::milliseconds Next() {
    const auto wait = next_;
    next_ = std::min(longest_, 2 * wait);
    return std::chrono::milliseconds(std::uniform_int_distribution<int64_t>(wait.count() / 2, wait.count())(random_));
  }

 private:
  const std::chrono::milliseconds first_;
  const std::chrono::milliseconds longest_;
  std::chrono::milliseconds next_;
  std::minstd_rand random_;
};

}  // namespace lockstep

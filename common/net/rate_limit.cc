#include "common/net/rate_limit.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kEarned{50};

}  // namespace

RateLimit::RateLimit(uint64_t bytes_per_s, Now now) : bytes_per_s_(bytes_per_s), now_(std::move(now)) {}

RateLimit::Clock::duration RateLimit::Book(uint64_t bytes) {
  if (bytes_per_s_ == 0) return {};
  const std::chrono::duration<double> takes(static_cast<double>(bytes) / static_cast<double>(bytes_per_s_));
  const Clock::time_point now = now_();
  std::lock_guard lock(mutex_);
  const Clock::time_point starts = std::max(free_at_, now - kEarned);
  free_at_ = starts + std::chrono::duration_cast<Clock::duration>(takes);
  return std::max(starts - now, Clock::duration{});
}

}  // namespace lockstep

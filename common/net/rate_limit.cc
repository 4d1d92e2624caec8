#include "common/net/rate_limit.h"

#include <algorithm>
#include <utility>

namespace lockstep::net {
namespace {

constexpr std::chrono::milliseconds kEarned{50};

}  // namespace

RateLimit::RateLimit(uint64_t bytes_per_s, Now now) : bytes_per_s_(bytes_per_s), now_(std::move(now)) {}

RateLimit::Clock::duration RateLimit::Book(uint64_t bytes) {
  if (bytes_per_s_ == 0) return {};
  const Clock::time_point now = now_();
  MutexLock lock(mutex_);
  const Clock::time_point starts = std::max(free_at_, now - kEarned);
  free_at_ = starts + Takes(bytes);
  return std::max(starts - now, Clock::duration{});
}

void RateLimit::GiveBack(uint64_t bytes) {
  if (bytes_per_s_ == 0) return;
  MutexLock lock(mutex_);
  free_at_ -= Takes(bytes);
}

RateLimit::Clock::duration RateLimit::Takes(uint64_t bytes) const {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / static_cast<double>(bytes_per_s_)));
}

}  // namespace lockstep::net

#include "common/telemetry/log_limit.h"

#include <utility>

namespace lockstep::telemetry {

uint64_t LogLimit::Count(std::string peer, Clock::time_point now) {
  MutexLock lock(mutex_);
  if (peers_.size() >= kMostPeers && !peers_.contains(peer)) {
    std::erase_if(peers_, [&](const auto& one) { return now - one.second.last_line >= kPeriod; });
    if (peers_.size() >= kMostPeers) peer.clear();
  }
  const auto [at, first] = peers_.try_emplace(std::move(peer));
  ++at->second.since;
  if (!first && now - at->second.last_line < kPeriod) return 0;
  at->second.last_line = now;
  return std::exchange(at->second.since, 0);
}

}  // namespace lockstep::telemetry

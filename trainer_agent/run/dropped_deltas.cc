#include "trainer_agent/run/dropped_deltas.h"

#include <algorithm>

namespace lockstep::run {

void DroppedDeltas::Add(const std::shared_ptr<const payload::Payload>& payload) {
  MutexLock lock(mutex_);
  std::erase_if(dropped_, [](const DroppedDelta& dropped) { return dropped.payload.expired(); });
  dropped_.push_back({payload, Clock::now()});
}

uint64_t DroppedDeltas::bytes() const {
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const DroppedDelta& dropped : dropped_) {
    if (const auto payload = dropped.payload.lock()) bytes += payload->total_bytes();
  }
  return bytes;
}

payload::DeltaChain DroppedDeltas::Overdue(Clock::time_point now) const {
  uint64_t left = bytes();
  MutexLock lock(mutex_);
  payload::DeltaChain overdue;
  for (const DroppedDelta& dropped : dropped_) {
    if (left <= max_bytes_ && now - dropped.since < kMaxAge) break;
    const auto payload = dropped.payload.lock();
    if (payload == nullptr) continue;
    left -= std::min<uint64_t>(left, payload->total_bytes());
    overdue.push_back(payload);
  }
  return overdue;
}

}  // namespace lockstep::run

#include "trainer_agent/store/pinned_deltas.h"

#include <algorithm>

namespace lockstep::store {

void PinnedDeltas::Add(const std::shared_ptr<const payload::Payload>& payload) {
  MutexLock lock(mutex_);
  std::erase_if(pinned_, [](const Pinned& pinned) { return pinned.payload.expired(); });
  pinned_.push_back({payload, Clock::now()});
}

uint64_t PinnedDeltas::bytes() const {
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const Pinned& pinned : pinned_) {
    if (const auto payload = pinned.payload.lock()) bytes += payload->total_bytes();
  }
  return bytes;
}

payload::DeltaChain PinnedDeltas::Overdue(Clock::time_point now) const {
  uint64_t left = bytes();
  MutexLock lock(mutex_);
  payload::DeltaChain overdue;
  for (const Pinned& pinned : pinned_) {
    if (left <= max_bytes_ && now - pinned.since < kMaxAge) break;
    const auto payload = pinned.payload.lock();
    if (payload == nullptr) continue;
    left -= std::min<uint64_t>(left, payload->total_bytes());
    overdue.push_back(payload);
  }
  return overdue;
}

}  // namespace lockstep::store

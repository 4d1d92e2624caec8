#include "raas_receiver/replica/kept_deltas.h"

#include <algorithm>

namespace lockstep::replica {

void KeptDeltas::Add(const payload::DeltaChain& steps, const VersionRef& base) {
  MutexLock lock(mutex_);
  const bool follows = !steps.empty() && !chain_.empty() && chain_.back()->target() == base;
  if (!follows || !keep_older_) chain_.clear();  // both replicas have now what was kept
  chain_.insert(chain_.end(), steps.begin(), steps.end());
  uint64_t bytes = 0;
  auto oldest = chain_.end();
  while (oldest != chain_.begin() && bytes + (*(oldest - 1))->total_bytes() <= max_bytes_) {
    bytes += (*--oldest)->total_bytes();
  }
  chain_.erase(chain_.begin(), oldest);
}

payload::DeltaChain KeptDeltas::Between(const VersionRef& from, const VersionRef& to) const {
  MutexLock lock(mutex_);
  const auto first = std::find_if(chain_.begin(), chain_.end(), [&](const auto& step) { return step->base() == from; });
  const auto last = std::find_if(first, chain_.end(), [&](const auto& step) { return step->target() == to; });
  return last == chain_.end() ? payload::DeltaChain() : payload::DeltaChain(first, last + 1);
}

}  // namespace lockstep::replica

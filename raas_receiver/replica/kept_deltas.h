// KeptDeltas: applied deltas, kept to bring the other replica and engines' memory forward.
#pragma once

#include <cstdint>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/payload/payload.h"

namespace lockstep::replica {

// Keeps one chain of consecutive deltas, of which the oldest go beyond a byte budget. Thread-safe.
class KeptDeltas {
 public:
  // `keep_older`: keeps deltas also when both replicas have them applied.
  KeptDeltas(uint64_t max_bytes, bool keep_older) : max_bytes_(max_bytes), keep_older_(keep_older) {}

  // `steps` led from `base` to the version committed last; none after a full pull.
  void Add(const payload::DeltaChain& steps, const VersionRef& base);

  // Returns the deltas that lead from `from` to `to`, oldest first; none when one of them is missing.
  payload::DeltaChain Between(const VersionRef& from, const VersionRef& to) const;

 private:
  const uint64_t max_bytes_;
  const bool keep_older_;
  mutable Mutex mutex_;
  payload::DeltaChain chain_ LS_GUARDED_BY(mutex_);
};

}  // namespace lockstep::replica

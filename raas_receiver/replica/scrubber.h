// Scrubber: hashes what the two replicas hold again, piece by piece, round after round: memory loses bits, also in
// blocks that no delta touches.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scrub_pace.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep::replica {

class Scrubber {
 public:
  // `round`: for both replicas together, as ScrubPace's.
  explicit Scrubber(std::chrono::milliseconds round) : pace_(round) {}

  struct Damage {
    ReplicaPair::Side side;
    VersionRef held;
    std::vector<BlockIndex> blocks;  // that do not have their hash in the manifest of `held`; at least one
  };

  // --- the session's thread ---
  // How long there is nothing to do for Step.
  std::chrono::milliseconds UntilDue() const { return pace_.UntilDue(); }
  // Hashes the next piece when it is due, in a few milliseconds.
  std::optional<Damage> Step(const ReplicaPair& replicas);

  // --- any thread ---
  uint64_t bytes() const { return bytes_; }  // hashed since the start

 private:
  ScrubPace pace_;
  std::atomic<uint64_t> bytes_ = 0;
  ReplicaPair::Side side_ = ReplicaPair::Side::kCurrent;  // what comes next,
  BlockIndex next_ = 0;                                   // and where in it
};

}  // namespace lockstep::replica

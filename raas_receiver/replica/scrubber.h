// Scrubber: hashes what the two replicas hold again, piece by piece, round after round: memory loses bits, also in
// blocks that no delta touches.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/ids.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep::replica {

class Scrubber {
 public:
  // `round`: in which both replicas are hashed once, or longer where that would be more than 1 GiB/s; 0: never.
  explicit Scrubber(std::chrono::milliseconds round) : round_(round) {}

  struct Damage {
    ReplicaPair::Side side;
    Held held;
    std::vector<BlockIndex> blocks;  // whose bytes are not what their version names; at least one
  };

  // --- the session's thread ---
  // How long there is nothing to do for Step.
  std::chrono::milliseconds UntilDue() const;
  // Hashes the next piece when it is due, in a few milliseconds.
  std::optional<Damage> Step(const ReplicaPair& replicas);

  // --- any thread ---
  uint64_t bytes() const { return bytes_; }  // hashed since the start

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::milliseconds Share(uint64_t bytes, const model::ModelLayout& layout) const;

  const std::chrono::milliseconds round_;
  std::atomic<uint64_t> bytes_ = 0;
  Clock::time_point due_;
  ReplicaPair::Side side_ = ReplicaPair::Side::kCurrent;  // what comes next,
  BlockIndex next_ = 0;                                   // and where in it
};

}  // namespace lockstep::replica

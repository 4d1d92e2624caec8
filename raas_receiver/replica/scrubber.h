// Scrubber: hashes what the two replicas hold again, piece by piece, round after round: memory loses bits, also in
// blocks that no delta touches. A round goes through the one replica's memory and then through the other's, whichever
// is current meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "common/base/ids.h"
#include "common/base/scrub_pace.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep::replica {

class Scrubber {
 public:
  // `round`: for both replicas together, as ScrubPace's.
  explicit Scrubber(std::chrono::milliseconds round) : pace_(round) {}

  // --- the session's thread ---
  // How long Step() has nothing to do.
  std::chrono::milliseconds UntilDue() const { return pace_.UntilDue(); }
  // Hashes the next piece when it is due, in a few milliseconds. Returns whether it found damage; `replicas` report it.
  bool Step(ReplicaPair& replicas);

  // --- any thread ---
  uint64_t bytes() const { return bytes_; }  // hashed since the start

 private:
  ScrubPace pace_;
  std::atomic<uint64_t> bytes_ = 0;
  size_t replica_ = 0;   // that the next piece is of
  BlockIndex next_ = 0;  // the first block of the next piece
};

}  // namespace lockstep::replica

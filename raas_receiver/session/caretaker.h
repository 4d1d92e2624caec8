// Caretaker: looks after what a session's replicas hold: hashes it again while nothing else is to be done, says when
// the current version is to be mended, and gives up the other replica where that is damaged.
//
// Threads: the session's, but for what is marked so.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/backoff.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/replica/scrubber.h"
#include "raas_receiver/session/engines.h"
#include "raas_receiver/session/sync_history.h"

namespace lockstep::session {

class Caretaker {
 public:
  // `replicas`, `engines` and `history`, which is told of damage, outlive this. `scrub_round` is Scrubber's.
  Caretaker(std::string model, std::chrono::milliseconds scrub_round, replica::ReplicaPair& replicas, Engines& engines,
            SyncHistory& history)
      : model_(std::move(model)), replicas_(replicas), engines_(engines), history_(history), scrubber_(scrub_round) {}

  // --- any thread ---
  uint64_t scrubbed_bytes() const { return scrubber_.bytes(); }
  // Whether the current version is, as far as is known.
  bool damaged() const { return damaged_; }
  // Whether the other replica is: nothing is made from it, and nobody returns to it.
  bool other_damaged() const { return other_damaged_; }

  // --- the session's thread ---

  // Hashes the next piece when it is due. The current version is to be mended where it is damaged; the other one is not
  // needed, and is dropped.
  void Scrub();
  // Whether the current version is to be mended now. While an engine loads, nothing that it may read is withdrawn.
  bool MendDue() const;
  // How long Scrub has nothing to do and MendDue stays false, unless an engine's load ends.
  std::chrono::milliseconds UntilDue() const;

  // It could not be mended: it is tried again later.
  void MendFailed();
  // Another replica is current. If the one before was to be mended, nothing is to be made from it, and engines may have
  // read it.
  void Switched();
  // Drops it then: to be called before a sync, and before an engine is told what it may return to. REQUIRES that no
  // engine reads it.
  void DropDamaged();

 private:
  using Clock = std::chrono::steady_clock;

  void DropOther();

  const std::string model_;
  replica::ReplicaPair& replicas_;
  Engines& engines_;
  SyncHistory& history_;
  replica::Scrubber scrubber_;
  std::atomic<bool> damaged_ = false;        // the current version is
  Clock::time_point mend_at_;                // and is to be mended then
  std::atomic<bool> other_damaged_ = false;  // the other replica is, and is still there
  bool drop_failed_ = false;                 // the last time
  Backoff backoff_{std::chrono::minutes(5), std::chrono::seconds(1)};
};

}  // namespace lockstep::session

// EngineSide: how the engines of one session come to serve what its replicas hold, by either route.
//
//   directory   the driver makes the server load the published directory
//   in place    the memories that its ranks lent are written: prepared while they serve, then pause, write, go on
//
// Threads: the session's; what may be called from any is marked so.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "raas_receiver/engines/driver.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/targets/engine_targets.h"

namespace lockstep {

struct EngineSideOptions {
  bool in_place = false;
  EngineTargetsOptions targets;
};

// How telling the engine went.
struct ServeOutcome {
  Status status;  // why the engine does not serve the current version
  Held served;    // by the directory: what it serves now; nothing: nothing, or nobody knows
  std::chrono::microseconds total{0};
  std::chrono::microseconds prepare{0};
  std::chrono::microseconds pause{0};
  uint64_t written_bytes = 0;
};

class EngineSide {
 public:
  // `replicas` and `pool` outlive this.
  EngineSide(EngineSideOptions options, std::unique_ptr<EngineDriver> driver, ReplicaPair& replicas, WorkerPool& pool);

  // --- any thread ---
  std::string_view kind() const { return driver_->kind(); }
  bool in_place() const { return options_.in_place; }
  // Whether somebody is told of versions at all.
  bool told() const { return in_place() || driver_->notifies(); }
  EngineTargets& targets() { return targets_; }
  // Whether Serve has something to do, as long as the server serves `served` by the directory.
  bool Behind(const Held& served) const;
  // What all engines in place serve; nothing: they serve nothing, or not the same.
  Held ServedInPlace() const;
  uint64_t failures() const { return driver_->failures(); }
  std::vector<EngineReport> Describe() const { return targets_.Describe(); }
  // Gives up the driver's call; it takes no other.
  void Cancel() { driver_->Cancel(); }

  // --- the session's thread ---
  // Whether Serve is to be tried again by itself: not with a hook, which has its own attempts and hears of the next
  // version, nor when the server went back to the version before.
  bool TriesAgain() const;
  // Makes the engine serve the current version; `served` is what it serves so far. REQUIRES a current version.
  ServeOutcome Serve(const std::string& mode, const Held& served);
  // By the directory, over HTTP: whether the server can be asked what it serves.
  bool CanBeAsked() const { return OverHttp() && !in_place(); }
  // Whether it still serves `served`, one of the two versions that the replicas hold: one that was started again does
  // not. An error is why that is not known.
  Result<bool> StillServes(const Held& served);
  // In place: compares the engines' memory with the current version. As EngineTargets::Verify.
  Status Verify();

 private:
  ServeOutcome Load(const EngineVersion& version, const Held& served);
  ServeOutcome Write(const EngineVersion& version);
  Status WritePaused(const EngineVersion& version, const EngineVersion& before);
  Status PausedAndResumed(const EngineVersion& version);
  Status Resume(const EngineVersion& serving);
  bool OverHttp() const { return driver_->controls_server(); }
  EngineVersion Describe(const PublishedVersion& version, const std::string& mode) const;

  const EngineSideOptions options_;
  const std::unique_ptr<EngineDriver> driver_;
  ReplicaPair& replicas_;
  EngineTargets targets_;
  Held went_back_from_;  // the last version that the server could not load, the session's thread's
  // In place: the server may be paused, by us or by a receiver before us, and is to go on once its memory is whole.
  std::atomic<bool> owes_resume_;
};

}  // namespace lockstep

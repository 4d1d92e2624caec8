// EngineUpdater: makes the engines of one session serve what its replicas hold, by either route.
//
//   directory   the driver makes the server load the published directory
//   in place    the memories that its ranks lent are written: prepared while they serve, then pause, write, resume
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

namespace lockstep::session {

struct EngineUpdaterOptions {
  bool in_place = false;
  targets::EngineTargetsOptions targets;
};

// How making the engines serve a version went.
struct EngineOutcome {
  Status status;  // why the engine does not serve the current version
  Held served;    // by the directory: what it serves now; nothing: nothing, or nobody knows
  std::chrono::microseconds total{0};
  std::chrono::microseconds prepare{0};
  std::chrono::microseconds pause{0};
  uint64_t written_bytes = 0;
};

class EngineUpdater {
 public:
  // `replicas` and `pool` outlive this.
  EngineUpdater(EngineUpdaterOptions options, std::unique_ptr<engines::EngineDriver> driver,
                replica::ReplicaPair& replicas, WorkerPool& pool);

  // --- any thread ---
  std::string_view kind() const { return driver_->kind(); }
  bool in_place() const { return options_.in_place; }
  // Whether somebody is notified of versions at all.
  bool notifies() const { return in_place() || driver_->notifies(); }
  targets::EngineTargets& targets() { return targets_; }
  // Whether Serve has something to do, as long as the server serves `served` by the directory.
  bool Behind(const Held& served) const;
  // What all engines in place serve; nothing: they serve nothing, or not the same.
  Held ServedInPlace() const;
  uint64_t failures() const { return driver_->failures(); }
  std::vector<targets::EngineReport> Describe() const { return targets_.Describe(); }
  // Cancels the driver's call; it takes no other.
  void Cancel() { driver_->Cancel(); }

  // --- the session's thread ---
  // Whether Serve is to be tried again without a new version: not with a hook, which has its own attempts, nor when the
  // server reverted to the version before.
  bool TriesAgain() const;
  // Makes the engine serve the current version; `served` is what it serves so far. REQUIRES a current version.
  EngineOutcome Serve(const std::string& mode, const Held& served);
  // By the directory, over HTTP: whether the server can be asked what it serves.
  bool CanBeAsked() const { return OverHttp() && !in_place(); }
  // Whether it still serves `served`, one of the two versions that the replicas hold: one that was started again does
  // not. An error is why that is not known.
  Result<bool> StillServes(const Held& served);
  // In place: compares the engines' memory with the current version. As EngineTargets::Verify.
  Status Verify();

 private:
  EngineOutcome Load(const engines::EngineVersion& version, const Held& served);
  EngineOutcome Write(const engines::EngineVersion& version);
  Status WritePaused(const engines::EngineVersion& version, const engines::EngineVersion& before);
  Status PausedAndResumed(const engines::EngineVersion& version);
  Status Resume(const engines::EngineVersion& serving);
  bool OverHttp() const { return driver_->controls_server(); }
  engines::EngineVersion Describe(const replica::PublishedVersion& version, const std::string& mode) const;

  const EngineUpdaterOptions options_;
  const std::unique_ptr<engines::EngineDriver> driver_;
  replica::ReplicaPair& replicas_;
  targets::EngineTargets targets_;
  Held reverted_from_;  // the last version that the server could not load, the session's thread's
  // In place: the server may be paused, by us or by a receiver before us, and is to resume once its memory is whole.
  std::atomic<bool> owes_resume_;
};

}  // namespace lockstep::session

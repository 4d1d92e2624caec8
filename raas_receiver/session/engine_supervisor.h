// EngineSupervisor: what the engines of one session serve, and when something is to be done about it: a version that
// they lack, an attempt that failed, a server that was restarted.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/telemetry/timeline.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/session/backoff.h"
#include "raas_receiver/session/change_signal.h"
#include "raas_receiver/session/engine_updater.h"

namespace lockstep::session {

class EngineSupervisor {
 public:
  // `replicas`, `pool`, `timeline` (null: no spans) and `changed`, which is notified of ranks that come and go, outlive
  // this.
  EngineSupervisor(std::string model, EngineUpdaterOptions options, std::unique_ptr<engines::EngineDriver> driver,
                   replica::ReplicaPair& replicas, WorkerPool& pool, telemetry::Timeline* timeline,
                   ChangeSignal& changed);

  // --- any thread ---
  bool in_place() const { return updater_.in_place(); }
  // Where the ranks of engines attach.
  targets::EngineTargets& targets() { return updater_.targets(); }
  // Fills in what a status says of engines.
  void Describe(v1::ReceiverModel& model) const;
  void Cancel() { updater_.Cancel(); }

  // --- the session's thread ---
  // Whether some engine does not serve the current version.
  bool Behind() const { return updater_.Behind(served()); }
  // Whether a receiver that was killed between commit and engine left a version to be served.
  bool OwesVersion() const { return updater_.notifies() && Behind(); }
  // Whether an engine is behind, and it is time to try without a new version.
  bool Due() const;
  // How long Due and Check have nothing to do, unless `changed` is notified.
  std::chrono::milliseconds UntilDue() const;
  // Asks a server that can be asked, and was not lately, whether it still serves what it was given. One that was
  // restarted serves its own weights: it is behind from here on.
  void Check();
  // Makes the engines serve the current version, which pull `transfer` brought; 0: none did. REQUIRES a current
  // version.
  EngineOutcome Serve(const std::string& mode, uint64_t transfer = 0);
  // As EngineUpdater::Verify.
  Status Verify() { return updater_.Verify(); }

 private:
  using Clock = std::chrono::steady_clock;

  Held served() const;
  void SetServed(const Held& served);

  const std::string model_;
  replica::ReplicaPair& replicas_;
  telemetry::Timeline* const timeline_;
  Backoff backoff_;
  Clock::time_point serve_again_;  // not before, after a failure
  Clock::time_point check_again_;  // not before
  mutable std::mutex mutex_;
  Held served_;            // that the engine took, by the directory; guarded by mutex_
  EngineUpdater updater_;  // its threads call back: it ends before what is above
};

}  // namespace lockstep::session

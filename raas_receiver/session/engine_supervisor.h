// EngineSupervisor: what the engines of one session serve, when something is to be done about it (a version that they
// lack, an attempt that failed, a server that was restarted), and doing it, by either route:
//
//   directory   the driver makes the server load the published directory
//   in place    its ranks write their memory: prepared while they serve, then pause, write, resume
//
// A load may take minutes: it runs on a thread of its own, and its session goes on. What it reads stays as it is until
// it has ended (ReadsPrevious). One that failed is begun again, after waits that double up to a minute, until it works
// or a newer version comes.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/base/backoff.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/telemetry/timeline.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/engines/driver.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/session/change_signal.h"
#include "raas_receiver/targets/engine_targets.h"

namespace lockstep::session {

struct EngineSupervisorOptions {
  bool in_place = false;
  std::chrono::milliseconds late_after{0};  // an attempt that lasts so long is late; 0: none is
  targets::EngineTargetsOptions targets;    // but for the model and the server
};

// How making the engines serve a version went.
struct EngineOutcome {
  Status status;            // why the engine does not serve `version`
  Held version;             // that it was to serve
  Held served;              // by the directory: what it serves now; nothing: nothing, or nobody knows
  bool reverted = false;    // it could not load `version`, and loaded the one before again
  bool distrusted = false;  // what it loaded may not be what it is called: it is to load again
  uint64_t total_us = 0;
  uint64_t prepare_us = 0;
  uint64_t pause_us = 0;
  uint64_t written_bytes = 0;
};

class EngineSupervisor {
 public:
  // `replicas`, `pool`, `timeline` (null: no spans) and `changed`, which is notified of ranks that come and go and of
  // loads that end, outlive this.
  EngineSupervisor(std::string model, EngineSupervisorOptions options, std::unique_ptr<engines::EngineDriver> driver,
                   replica::ReplicaPair& replicas, WorkerPool& pool, telemetry::Timeline* timeline,
                   ChangeSignal& changed);

  // --- any thread ---
  bool in_place() const { return in_place_; }
  // Where the ranks of engines attach.
  targets::EngineTargets& targets() { return targets_; }
  // Whether it is known to serve some version, or nobody is notified.
  bool Serves() const { return !notifies() || !(in_place_ ? ServedInPlace() : served()).nothing(); }
  // What has not taken which version for how long, where an attempt under way is late. Empty: none is.
  std::string Late() const;
  // Fills in what a status says of engines.
  void Describe(v1::ReceiverModel& model) const;
  // Cancels the driver's call; it takes no other.
  void Cancel();

  // --- the session's thread ---
  // Whether some engine does not serve the current version.
  bool Behind() const;
  // Whether a receiver that was killed between commit and engine left a version to be served.
  bool OwesVersion() const { return notifies() && Behind(); }
  // Whether there is something to do: an attempt to be taken, or one to be begun because an engine is behind and the
  // wait after its last failure is over.
  bool Due() const;
  // How long Due, Check and ReadsPrevious stay as they are, unless `changed` is notified.
  std::chrono::milliseconds UntilDue() const;
  // Asks a server that can be asked, and was not lately, whether it still serves what it was given. One that was
  // restarted serves its own weights: it is behind from here on. Answers ranks that came to compare.
  void Check();
  // Begins to make the engines serve the current version, which came by `mode` and pull `transfer`; 0: by none. In
  // place it has ended when this returns. REQUIRES a current version, and that no attempt is under way.
  void Begin(const std::string& mode, uint64_t transfer = 0);
  // Whether an attempt was begun and not taken yet; whether it has ended.
  bool under_way() const;
  bool ended() const;
  // Whether the version before the current one is in use, so that no sync may write over it. By the directory: the
  // attempt under way loads it, or the server would return to it. In place: ranks read it, or may, and others of their
  // engine may have to be brought to it.
  bool ReadsPrevious() const;
  // Cancels the attempt under way, if there is one, and waits for its end. It is to be taken as ever.
  void Interrupt();
  // Waits for the end of the attempt under way, and answers how it went. REQUIRES one.
  EngineOutcome Take();
  // Compares the memory of the engines whose ranks are attached with the version that they are to serve. As
  // EngineTargets::Verify; kState also when nobody knows what they serve, or that is not held any more.
  Result<size_t> Verify();
  // Whatever the engines were known to serve may not be what it is called: they are behind, but for memory in place
  // that equals the current version, seen now. REQUIRES a current version.
  void Distrust();

 private:
  using Clock = std::chrono::steady_clock;

  // Whether somebody is notified of versions at all.
  bool notifies() const { return in_place_ || driver_->notifies(); }
  bool over_http() const { return driver_->controls_server(); }
  bool can_be_asked() const { return over_http() && !in_place_; }
  targets::EngineTargetsOptions TargetsOptions(targets::EngineTargetsOptions options);
  Held served() const;
  void SetServed(const Held& served);
  void MarkServed(const Held& served);
  Held ServedInPlace() const;
  Result<bool> StillServes(const Held& served);

  // An attempt to make engines serve `version`.
  struct Attempt {
    engines::EngineVersion version;
    std::optional<engines::EngineVersion> last_good;  // by the directory
    uint64_t transfer = 0;
    Clock::time_point begun = Clock::now();
    bool distrusted = false;               // as EngineOutcome's
    std::optional<EngineOutcome> outcome;  // once it has ended
  };
  void Run(const Attempt& attempt);
  void AwaitEnd();
  EngineOutcome Load(const Attempt& attempt);
  EngineOutcome Write(const engines::EngineVersion& version);
  Status WritePaused(const engines::EngineVersion& version, const engines::EngineVersion& before);
  Status PausedAndResumed(const engines::EngineVersion& version);
  Status Resume(const engines::EngineVersion& serving);
  engines::EngineVersion VersionOf(const replica::PublishedVersion& version, const std::string& mode) const;

  const std::string model_;
  const bool in_place_;
  const std::chrono::milliseconds late_after_;
  const std::unique_ptr<engines::EngineDriver> driver_;
  replica::ReplicaPair& replicas_;
  telemetry::Timeline* const timeline_;
  Backoff backoff_;
  Clock::time_point serve_again_;  // not before, after a failure
  Clock::time_point check_again_;  // not before
  Held tried_;                     // the version of the last attempt
  // In place: the server may be paused, by us or by a receiver before us, and is to resume once its memory is whole.
  std::atomic<bool> owes_resume_;
  ChangeSignal& changed_;
  mutable std::mutex mutex_;
  // By the directory: that the engine took. In place: that it was at when it was paused; nothing once that attempt is
  // taken. Guarded by mutex_.
  Held served_;
  std::optional<Attempt> attempt_;  // under way; guarded by mutex_
  bool cancelled_ = false;          // for good; guarded by mutex_
  targets::EngineTargets targets_;  // its threads call back: it ends before what is above
  WorkerPool loader_{1};            // the same
};

}  // namespace lockstep::session

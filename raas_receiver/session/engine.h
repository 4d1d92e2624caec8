// Engine: one of the engines of a session: what it serves, when something is to be done about it (a version that it
// lacks, an attempt that failed, a server that was restarted), and doing it, on a thread of its own. How a version gets
// into it is its EngineRoute's.
//
// An attempt may take minutes; its session and other engines go on. What it reads stays as it is until it has ended
// (ReadsPrevious). One that failed is begun again, after waits that double up to a minute, until it works or a newer
// version comes; where the server is gone, as soon as it answers. An engine that is late gives way: its attempt is
// cancelled when the next version needs the replica that it reads, and then it is given no other before it answers a
// question.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/backoff.h"
#include "common/base/mutex.h"
#include "common/base/worker_pool.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/session/engine_route.h"

namespace lockstep::session {

class Engine {
 public:
  using Clock = std::chrono::steady_clock;

  // `context` outlives this.
  Engine(const EngineContext& context, EngineConfig config, std::unique_ptr<engines::EngineDriver> driver);

  // --- any thread ---
  const std::string& name() const { return config_.name; }
  bool in_place() const { return config_.in_place; }
  bool made() const { return config_.made; }
  const std::string& url() const { return driver_->where(); }  // of its server; empty: none
  // The engine is notified of versions at all.
  bool notifies() const { return in_place() || driver_->notifies(); }
  targets::EngineTargets& targets() { return targets_; }
  const targets::EngineTargets& targets() const { return targets_; }
  // Nothing: nothing, or unknown.
  VersionRef served() const;
  // Whether it has been behind for longer than it may be without giving way.
  bool late() const { return LateAt() <= Clock::now(); }
  // What has not taken which version for how long, where an attempt under way is late. Empty: none is.
  std::string LateAttempt() const;
  // Why it is not given what it is to serve, now or by the last attempt. Empty: nothing is wrong.
  std::string error() const;
  // Adds what a status says of the engine and of its ranks. An engine without ranks is an error only if it `counts`,
  // that is, if it is to serve.
  void Describe(v1::ReceiverModel& model, bool counts) const;
  // Cancels the driver's call; it takes no other.
  void Cancel();

  // --- the session's thread ---
  // Whether it does not serve the current version. Not while that is damaged: it is given nothing then.
  bool Behind() const;
  // Whether there is something to do: an attempt to be taken, or one to be begun because the engine is behind and the
  // wait after its last failure is over.
  bool Due() const;
  // A pause failed that kept its readers out: it is given nothing, so that they can read meanwhile. Not while a rank
  // has nothing to read.
  bool Rests() const { return Clock::now() < pause_again_ && targets_.AllRead(); }
  // How long Due, Check, ReadsPrevious and late stay as they are, unless `changed` is notified.
  std::chrono::milliseconds UntilDue() const;
  // Asks a server that can be asked, and was not lately, whether it still serves what it was given, and answers ranks
  // that came to compare. One that does not answer serves nothing; one that was restarted serves its own weights: it is
  // behind from then on.
  void Check();
  // Begins to make it serve the current version, which came by `mode` and pull `transfer`; 0: by none. REQUIRES a
  // current version, that it is not known here to be damaged, that the engine is notified, and that no attempt is under
  // way.
  void Begin(const std::string& mode, uint64_t transfer = 0);
  // Whether an attempt was begun and not taken yet; whether it has ended.
  bool under_way() const;
  bool ended() const;
  // Nothing runs on its thread.
  bool Idle() const { return !under_way() && !asking_; }
  // Whether the version before the current one is in use, so that no sync may write over it.
  bool ReadsPrevious() const;
  // Cancels the attempt under way, if there is one and it is late. It is to be taken as ever.
  void GiveWay();
  // Whether GiveWay would, of an attempt that reads the version before the current one.
  bool MayGiveWay() const;
  // Cancels the attempt under way, if there is one. It is to be taken as ever.
  void Interrupt() { CancelAttempt(/*gives_way=*/false); }
  // It is given nothing any more. Any thread.
  void Retire();
  bool retired() const { return retired_; }
  // Waits for the end of the attempt under way, and answers how it went. REQUIRES one.
  EngineOutcome Take();
  // Compares the memory of its ranks that are attached with the version that it is to serve, as EngineRoute::Verify.
  // REQUIRES that no attempt is under way.
  Result<size_t> Verify();
  // As EngineRoute::Doubt, also while an attempt is under way: what that gives it is doubted, too, and it is cancelled
  // where it gives the version that is damaged.
  void Doubt(const VersionRef& damaged);

 private:
  struct Attempt {
    EngineAttempt with;
    uint64_t failures = 0;  // the driver's, before
    Clock::time_point begun = Clock::now();
    std::vector<VersionRef> damaged;  // what was found so since it began
    bool cancelled = false;
    bool gave_way = false;                 // and for that
    std::optional<EngineOutcome> outcome;  // once it has ended
  };

  bool over_http() const { return driver_->controls_server(); }
  targets::EngineTargetsOptions TargetsOptions();
  // Its server, which loads the directory, does not answer.
  bool Silent() const { return !in_place() && !route_->Trouble().ok(); }
  v1::EngineState State(const std::vector<targets::EngineReport>& groups, const VersionRef& served, bool failing) const
      LS_REQUIRES(mutex_);
  EngineVersions VersionsOf(const replica::PublishedVersion& version, std::span<const std::byte> data,
                            const std::string& mode) const;
  Clock::time_point LateAt() const;
  void CancelAttempt(bool gives_way);
  void Track();
  bool RanksReadPrevious() const;
  void Run(const EngineAttempt& attempt);
  void Ask();
  void AwaitEnd();
  void OnThread(const std::function<void()>& task);
  void TakeFailure(const EngineOutcome& outcome, bool counted);
  Status Explain(Status status, const Attempt& attempt) const;

  const EngineContext& context_;
  EngineConfig config_;
  const std::unique_ptr<engines::EngineDriver> driver_;
  Backoff backoff_;
  Clock::time_point pause_again_;                                // not before, whatever the version
  Clock::time_point serve_again_;                                // not before, after a failure
  Clock::time_point check_again_;                                // not before
  bool failed_ = false;                                          // the last attempt
  Clock::time_point load_again_;                                 // not before, after a loss of what it served
  VersionRef tried_;                                             // the version of the last attempt
  std::atomic<Clock::time_point> behind_ = Clock::time_point();  // since; that: it is not
  std::atomic<bool> asking_ = false;                             // the thread asks the server
  std::atomic<bool> retired_ = false;
  std::atomic<uint64_t> failures_ = 0;        // of attempts in place, beside the driver's
  std::atomic<int64_t> silent_since_ns_ = 0;  // on the system's clock
  std::atomic<bool> lost_ = false;            // its server answered all the time, and does not serve what it was given
  std::atomic<bool> answers_ = false;         // it did when it was last asked, since the last attempt
  std::atomic<bool> ranks_changed_ = false;   // since the last Check
  mutable Mutex mutex_;
  std::optional<Attempt> attempt_ LS_GUARDED_BY(mutex_);  // under way
  bool cancelled_ LS_GUARDED_BY(mutex_) = false;          // for good
  uint64_t last_pause_us_ LS_GUARDED_BY(mutex_) = 0;
  uint64_t last_written_bytes_ LS_GUARDED_BY(mutex_) = 0;
  VersionRef last_served_ LS_GUARDED_BY(mutex_);  // after the last attempt
  int64_t served_since_unix_ns_ LS_GUARDED_BY(mutex_) = 0;
  std::string last_error_ LS_GUARDED_BY(mutex_);  // of the last attempt; empty after a success
  int64_t last_error_unix_ns_ LS_GUARDED_BY(mutex_) = 0;
  targets::EngineTargets targets_;  // its threads call back: it ends before what is above
  std::unique_ptr<EngineRoute> route_;
  WorkerPool thread_{1};  // the same
};

}  // namespace lockstep::session

// Engine: one engine of a session, as an actor. One thread of its own brings the engine to the version that the session
// has given, whatever fails, and tells what came of that.
//
// The session gives the current version, with what the other replica holds, and takes both back before a sync writes
// into the other replica. In between the engine decides by itself: it begins an attempt when it is behind, waits after
// one that failed, asks its server whether that still serves, answers ranks that attach. What was given is for one
// attempt: when that has ended the session gives again, or syncs first.
//
//   state       the thread                                            then
//   Resting     waits for a rank, for the session, or for a time      Asking, Comparing, Loading, Preparing
//   Asking      asks the server, or answers ranks that compare        Resting
//   Comparing   compares its ranks' memory, for an operator           Resting
//   Loading     by the directory: has the server load what is         Resting
//               published
//   Preparing   in place: works out the writes; its ranks serve       Pausing; Resting, if there is nothing to write
//   Pausing     pauses the server and the ranks, which write their    Resting
//               memory, and resumes them
//
// An attempt may take minutes; its session and other engines go on. The bytes that it reads stay as they are: TakeBack
// refuses while it reads them. After one that failed the engine waits, twice as long each time up to a minute, until it
// works or a newer version comes; where the server is gone, until it answers. An engine that is late gives way: its
// attempt is cancelled when a sync needs the replica that it reads, and it begins no other before its server answers.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/backoff.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/telemetry/timeline.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/engine/drivers/driver.h"
#include "raas_receiver/engine/ranks/engine_ranks.h"
#include "raas_receiver/receipts/serving_ledger.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep::engine {

// What the engines of a session share. It outlives them.
struct EngineContext {
  std::string model;
  replica::ReplicaPair& replicas;
  size_t engine_threads = 2;                  // that write into the ranks of each engine in place
  telemetry::Timeline* timeline = nullptr;    // null: no spans
  std::function<void()> changed;              // called when ranks come and go, and when attempts end
  std::string receiver = {};                  // its name, for receipts
  receipts::ServingLedger* ledger = nullptr;  // of what engines serve; null: none
};

struct EngineConfig {
  std::string name = "default";
  bool in_place = false;
  bool made = false;                        // by its ranks; it is in no configuration
  std::chrono::milliseconds late_after{0};  // an engine that is behind for so long is late; 0: none is
  EngineRanksOptions ranks;                 // but for the model and the server
};

// A version as a server is told of it, and as ranks are written. Its data stays as it is while readers may be there.
struct EngineVersions {
  EngineVersion version;
  VersionData data;
};

// What an engine is given: the current version, and the other replica's, where that holds one.
struct EngineAttempt {
  uint64_t number = 0;   // rises with each version that is made current
  bool at_once = false;  // an operator's: attempts at others are cancelled, and engines that rest are not spared
  EngineVersions current;
  std::optional<EngineVersions> before;
  uint64_t transfer = 0;  // the pull that `current` came by; 0: none
};

// How an attempt went.
struct EngineOutcome {
  Status status;          // why the engine does not serve `version`
  uint64_t number = 0;    // of the version that it was to serve
  VersionRef version;     // that version
  VersionRef served;      // by the directory: what it serves now; nothing: nothing, or unknown
  bool reverted = false;  // it could not load `version`, and loaded the one before again
  bool doubted = false;   // what it took may not be what it is called: it is to take it again
  uint64_t total_us = 0;
  uint64_t prepare_us = 0;
  uint64_t pause_us = 0;
  uint64_t written_bytes = 0;
};

// What the replicas hold, as engines are given it; nothing: no version is current, or a damaged one. It came by `mode`
// and pull `transfer`; 0: by none.
std::optional<EngineAttempt> WhatToGive(const EngineContext& context, uint64_t number, const std::string& mode,
                                        uint64_t transfer = 0, bool at_once = false);

// Everything may be called by any thread, but for Give and TakeBack, which are the session's.
class Engine {
 public:
  using Clock = std::chrono::steady_clock;

  // `context` outlives this.
  Engine(const EngineContext& context, EngineConfig config, std::unique_ptr<EngineDriver> driver);
  // Waits for what its thread does.
  ~Engine();

  const std::string& name() const { return config_.name; }
  bool in_place() const { return config_.in_place; }
  bool made() const { return config_.made; }
  const std::string& url() const { return driver_->where(); }  // of its server; empty: none
  // The engine is notified of versions at all.
  bool notifies() const { return in_place() || driver_->notifies(); }
  EngineRanks& ranks() { return ranks_; }
  const EngineRanks& ranks() const { return ranks_; }

  // --- what it is told ---
  // The current version, which the engine is to serve, and what the other replica holds; nothing: there is no version
  // to be served. The engine may read both until TakeBack.
  void Give(const std::optional<EngineAttempt>& given);
  // The engine begins no attempt and no comparison until Give. False, and nothing is taken back: the version before the
  // current one is in use, so that no sync may write over it.
  bool TakeBack();
  // Cancels the attempt under way, if there is one, the engine is late, and the attempt is in the way of TakeBack.
  void GiveWay();
  // The replica that held `damaged` lacks some hash of it; nothing: any replica may. Where the engine may have been
  // given its bytes, it is not known any more to serve what it served, and is behind: memory in place is compared by
  // the next attempt, and written where it differs. An attempt under way that gives that version is cancelled, and what
  // it gave is doubted, too.
  void Doubt(const VersionRef& damaged);
  // Compares the memory of its attached ranks with the version that it is to serve: as EngineRanks::Verify. kState
  // also when that version is not known, not held any more, or damaged; kCancelled when the engine ends first.
  std::future<Result<size_t>> Verify();
  // Cancels what is under way; the driver takes no other call.
  void Cancel();
  // Cancel, and the engine is given nothing any more.
  void Retire();
  bool retired() const { return retired_; }

  // --- what it tells ---
  // No version: it serves none, or which one is not known.
  VersionRef served() const;
  // Whether it does not serve the current version. Never while that is damaged: no engine is given it then.
  bool Behind() const;
  bool under_way() const;  // an attempt
  // How the last attempt at the version of that number went. Nothing: there was none, or what it gave is doubted.
  std::optional<EngineOutcome> OutcomeOf(uint64_t number) const;
  // Whether it has been behind for longer than it may be without giving way.
  bool late() const { return LateAt() <= Clock::now(); }
  // The next time at which, and at nothing else that is not notified, TakeBack may go another way or the engine is
  // late.
  Clock::time_point NextChange() const;
  // What has not taken which version for how long, where an attempt under way is late. Empty: none is.
  std::string LateAttempt() const;
  // Why it is not given what it is to serve, now or by the last attempt. Empty: nothing is wrong.
  std::string error() const;
  // Notes what it serves, for receipts, unless it is paused or about to be.
  void NoteServing();
  // Adds what a status says of the engine and of its ranks. An engine without ranks is an error only if it `counts`,
  // that is, if it is to serve.
  void Describe(v1::ReceiverModel& model, bool counts) const;

 private:
  struct Attempt {
    EngineAttempt with;
    uint64_t failures = 0;  // the driver's, before
    Clock::time_point begun = Clock::now();
    bool cancelled = false;
    bool gave_way = false;  // and for that
  };
  enum class State { kResting, kAsking, kComparing, kLoading, kPreparing, kPausing };

  Clock::time_point LateAt() const;
  bool over_http() const { return driver_->controls_server(); }
  EngineRanksOptions RanksOptions();
  v1::EngineState Shown(const std::vector<RankGroupReport>& groups, const VersionRef& served, bool failing) const
      LS_REQUIRES(mutex_);
  VersionRef Served() const LS_REQUIRES(mutex_);
  bool IsBehind() const LS_REQUIRES(mutex_);
  bool Lacks(const VersionRef& current) const LS_REQUIRES(mutex_);
  bool ReadsPrevious() const LS_REQUIRES(mutex_);
  bool RanksReadPrevious() const;
  // A pause failed that kept its readers out: it is given nothing, so that they can read meanwhile. Not while a rank
  // has nothing to read.
  bool Rests() const LS_REQUIRES(mutex_) { return Clock::now() < pause_again_ && ranks_.AllRead(); }
  bool Due() const LS_REQUIRES(mutex_);
  void BeginIfDue() LS_REQUIRES(mutex_);
  bool CancelAttempt(bool gives_way) LS_REQUIRES(mutex_);

  // --- its thread ---
  static constexpr std::chrono::minutes kLongestWait{1};  // after a failure
  void Loop();
  // What to do now; nothing: the engine ends.
  std::optional<State> Next();
  void Enter(State state);
  bool AskDue() const LS_REQUIRES(mutex_);
  std::chrono::milliseconds UntilDue() const;
  void Track();
  void EndServing();
  std::optional<v1::Receipt> WhatIsServed() const;
  void TakeDoubts(bool attempt_ended);
  void Ask();
  void Compare();
  static Status CheckComparable(const replica::PublishedVersion& version);

  // --- its thread: an attempt (engine_attempt.cc) ---
  void Serve();
  void Take(EngineOutcome outcome);
  void SetNextTry(const EngineOutcome& outcome) LS_REQUIRES(mutex_);
  Status Explain(Status status, const Attempt& attempt) const;

  // --- its thread, of an engine in place (engine_in_place.cc) ---
  VersionRef InMemory() const;
  EngineOutcome WriteRanks(const EngineAttempt& attempt);
  Status PrepareRanks(const EngineAttempt& attempt);
  Status WritePaused(const EngineAttempt& attempt);
  Status CommitPaused(const EngineVersion& version, const EngineVersion& before);
  Status Resume(EngineVersion serving);
  Result<size_t> CompareWritten(const std::optional<EngineAttempt>& given);

  // --- its thread, of an engine that loads the directory (engine_directory.cc) ---
  EngineOutcome Load(const EngineAttempt& attempt);
  // Whether the server still serves what it was given. An error: it does not answer.
  Result<bool> StillServes();
  Result<std::optional<bool>> AskServer(const VersionRef& loaded) const;
  void TakeSilence(const Status& status);
  bool Believe(std::optional<bool> says);
  Result<size_t> CompareLoaded(const std::optional<EngineAttempt>& given);
  // Any thread.
  VersionRef loaded() const;
  void SetLoaded(const VersionRef& loaded);
  void DoubtLoaded(const VersionRef& damaged);

  const EngineContext& context_;
  EngineConfig config_;
  const std::unique_ptr<EngineDriver> driver_;
  // The thread's.
  Backoff backoff_;
  Clock::time_point check_again_;  // not before
  Clock::time_point load_again_;   // not before, after a loss of what it served
  bool failed_ = false;            // the last attempt

  std::atomic<Clock::time_point> behind_ = Clock::time_point();  // since; that: it is not
  std::atomic<bool> retired_ = false;
  std::atomic<uint64_t> failures_ = 0;       // of attempts in place, beside the driver's
  std::atomic<bool> ranks_changed_ = false;  // since ranks that compare were answered
  // In place: the server may be paused, by this engine or by a receiver before, and is to resume once memory is whole.
  std::atomic<bool> owes_resume_;

  Mutex ledger_mutex_;                                 // taken before mutex_
  bool pausing_ LS_GUARDED_BY(ledger_mutex_) = false;  // since EndServing, until its thread has ended the attempt
  Mutex note_mutex_;  // one note of what was loaded after the other, in the order of loaded_; taken before mutex_
  mutable Mutex mutex_;
  State state_ LS_GUARDED_BY(mutex_) = State::kResting;
  std::optional<EngineAttempt> given_ LS_GUARDED_BY(mutex_);
  bool taken_back_ LS_GUARDED_BY(mutex_) = true;
  std::optional<Attempt> attempt_ LS_GUARDED_BY(mutex_);                      // begun, and not taken
  EngineOutcome outcome_ LS_GUARDED_BY(mutex_);                               // of the last one
  std::vector<std::promise<Result<size_t>>> compares_ LS_GUARDED_BY(mutex_);  // that are wanted
  std::vector<VersionRef> doubts_ LS_GUARDED_BY(mutex_);                      // that the thread has not taken yet
  bool doubted_ LS_GUARDED_BY(mutex_) = false;                                // by one of them: what ranks hold
  uint64_t tried_ LS_GUARDED_BY(mutex_) = 0;             // the number of the last attempt's version
  Clock::time_point pause_again_ LS_GUARDED_BY(mutex_);  // not before, whatever the version
  Clock::time_point serve_again_ LS_GUARDED_BY(mutex_);  // not before, after a failure
  bool answers_ LS_GUARDED_BY(mutex_) = false;    // its server did when it was last asked, since the last attempt
  bool cancelled_ LS_GUARDED_BY(mutex_) = false;  // for good
  bool ends_ LS_GUARDED_BY(mutex_) = false;
  // In place: what its ranks were at when they were paused.
  VersionRef paused_at_ LS_GUARDED_BY(mutex_);
  // By the directory: what the server was given and took; whether it has named that, or loaded it, and has answered
  // ever since; how many questions in a row it left open, and why it does not answer, where it does not.
  VersionRef loaded_ LS_GUARDED_BY(mutex_);
  bool proved_ LS_GUARDED_BY(mutex_);
  int unanswered_ LS_GUARDED_BY(mutex_) = 0;
  Status silence_ LS_GUARDED_BY(mutex_);
  int64_t silent_since_unix_ns_ LS_GUARDED_BY(mutex_) = 0;
  uint64_t last_pause_us_ LS_GUARDED_BY(mutex_) = 0;
  uint64_t last_written_bytes_ LS_GUARDED_BY(mutex_) = 0;
  VersionRef last_served_ LS_GUARDED_BY(mutex_);  // after the last attempt
  int64_t served_since_unix_ns_ LS_GUARDED_BY(mutex_) = 0;
  std::string last_error_ LS_GUARDED_BY(mutex_);  // of the last attempt; empty after a success
  int64_t last_error_unix_ns_ LS_GUARDED_BY(mutex_) = 0;

  EngineRanks ranks_;
  std::thread thread_;
};

}  // namespace lockstep::engine

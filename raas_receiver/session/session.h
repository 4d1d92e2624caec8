// The session of one model: one thread that keeps the model's replicas in step with its origin, and engines with them.
//
// The thread has one loop. Each turn it does the first of its tasks that is due (kTasks), and waits when none is, until
// something changes: a version is announced, an operator's order comes, an engine has ended an attempt or its ranks
// have changed; or until it is time for a task. States, as status shows them:
//
//   state          is left by                          for
//   Waiting        a newer version, or a pull          Negotiating
//                  damage to what is held              Applying
//                  a rollback                          Held; Waiting for one that skips a version
//   Held           a pull                              Negotiating
//                  damage to what is held              Applying
//                  a rollback                          Held, or Waiting
//   Negotiating    a plan with something to pull       Pulling
//                  the other replica holds it          Committing
//                  nothing newer                       Waiting
//   Pulling        all bytes are here                  Verifying
//   Verifying      they are what was promised          Applying
//   Applying       every block has its hash            Committing
//   Committing     it is current                       Waiting; Held after a repair of what is held back
//   BackingOff     the wait after an error is over     Negotiating
//                  a pull, damage, or a rollback       as from Waiting
//
// From every state of a sync (Negotiating to Committing, sync.h) an error leads to BackingOff, or of a repair, which
// has a wait of its own, to where it came from; and a rollback ends it.
// Engines take a version in on threads of their own, which may take minutes; Waiting and Held are shown as Notifying
// meanwhile. The session pulls and commits the next version at the same time. It stays one version ahead: a sync writes
// into the replica of the version before, which engines give back first (Engine::TakeBack). A late engine gives way.
//
// Pulls and rollbacks are answered when engines have ended their attempts at the version (Unanswered, Settle). Nothing
// waits for an engine inside a task.
//
// What is held is hashed again meanwhile. The scrub, a sync, an archiver or an operator's verify finds damage and marks
// the replica at once (ReplicaPair). The session then doubts the engines that may have been given what is wrong. A
// current version that is damaged is made again in the other replica by a sync of its own; another one is dropped, for
// it can be had again.
//
// It decides on what others know: Orders what the service's threads want, VersionFollower what the origin announced,
// Engines what engines serve. Each has a lock of its own, held for no call to another.
//
// Threads: everything public may be called from any thread. Replicas are only ever driven by the session's own.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "common/base/backoff.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/telemetry/timeline.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/archive/archiver.h"
#include "raas_receiver/engine/engines.h"
#include "raas_receiver/origin/origin.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/replica/scrubber.h"
#include "raas_receiver/session/change_signal.h"
#include "raas_receiver/session/freshness.h"
#include "raas_receiver/session/orders.h"
#include "raas_receiver/session/reporter.h"
#include "raas_receiver/session/sync.h"
#include "raas_receiver/session/sync_feed.h"
#include "raas_receiver/session/sync_history.h"
#include "raas_receiver/session/version_follower.h"

namespace lockstep::session {

// How long a call waits for engines.
inline constexpr std::chrono::minutes kEngineCallTime{10};

struct SessionOptions {
  std::string model;
  bool follow = true;                          // sync whenever there is a newer version
  std::chrono::milliseconds scrub_round{0};    // in which what is held is hashed again; 0: never
  std::chrono::milliseconds log_max_age{0};    // not ready when its log's head is older; 0: whatever its age
  std::chrono::milliseconds unready_after{0};  // behind the origin for so long it is not ready; 0: it stays so
  engine::EngineAdmission admission;           // of engines that are not in the table
  size_t engine_threads = 2;                   // that write into the ranks of each engine in place
  telemetry::Timeline* timeline = nullptr;     // where spans go, when not null; outlives the session
  std::string receiver = {};                   // its name, for receipts
  std::string ledger_path = {};                // of what engines served; empty: in memory only
};

class Session {
 public:
  // `origin` and `replicas` are the model's, `archiver` is theirs (null: versions go to no log), `table` are its
  // engines, one at least; `feed` outlives the session.
  Session(SessionOptions options, std::unique_ptr<origin::Origin> origin,
          std::unique_ptr<replica::ReplicaPair> replicas, std::unique_ptr<archive::Archiver> archiver,
          std::vector<engine::EngineEntry> table, SyncFeed& feed);
  ~Session();

  void Start();
  // Makes the session end. Pulls are cancelled at once; what is being committed is finished.
  void RequestStop();
  // Waits until it has ended; past `timeout` a call to the engine that still runs is cancelled.
  void Join(std::chrono::milliseconds timeout);

  const std::string& model() const { return options_.model; }
  v1::ReceiverModel Describe() const;
  // Whether there is a version that is whole, as far as is known.
  bool HoldsVersion() const;
  // Whether there is a version to be used: HoldsVersion, served by the engine where there is one, and not too old. By
  // one thread, now and then.
  bool Ready();
  // Syncs now and answers how it went. An error is why nothing was committed; kDeadline when it took longer than
  // `timeout`, and kCancelled when `cancelled` says that the caller has gone: the sync itself continues.
  Result<v1::SyncRecord> Pull(bool force_full, std::chrono::milliseconds timeout, const Orders::Cancelled& cancelled);
  // As receiver.proto says. kUsage for both versions at once; kState, and nothing is changed, when the replicas do not
  // hold what it takes; the engine's error when it does not take it. kDeadline and kCancelled as Pull.
  Result<v1::ReceiverModel> Rollback(const v1::RollbackRequest& request, const Orders::Cancelled& cancelled);
  Result<replica::VerifyReport> Verify() { return replicas_->Verify(); }
  // As Engines::Verify. kDeadline and kCancelled as Pull.
  Result<size_t> VerifyEngines(const Orders::Cancelled& cancelled);
  // Where the ranks of engines attach.
  engine::Engines& engines() { return engines_; }
  // What engines served, also until now.
  std::vector<v1::Receipt> Receipts(const v1::GetReceiptsRequest& request);
  // That of the current version; before there is one, that of the version to come. kNotFound: neither is known.
  Result<std::shared_ptr<const model::ModelLayout>> layout() const;

 private:
  // What the loop does: each answers whether it did something. The first that did ends the turn.
  using Task = bool (Session::*)();
  static const Task kTasks[];
  bool TakeDamage();
  bool RollBack();
  bool Synchronize();
  bool Repair();
  bool DropDamaged();
  bool GiveEngines();
  bool Settle();
  bool Prepare();
  bool Scrub();
  void Loop();
  std::chrono::milliseconds UntilDue() const;

  // Orders whose version is current, and which are answered once engines have ended their attempts at it.
  struct Unanswered {
    std::vector<Order> orders;
    bool rollback = false;  // they are; pulls otherwise
    Status status;
    v1::SyncRecord record;  // of a pull
    uint64_t number = 0;    // of the version, as it was given to engines
    std::vector<std::shared_ptr<const engine::Engine>> waiting;
  };

  bool HoldsDamage() const;      // in either replica, and knows it
  std::string StaleLog() const;  // why what the log has may be old; empty: it may not
  // What the origin is told of it. Any thread.
  v1::ReportRequest Report() const;

  void ToArchive();
  bool SyncWanted() const;
  bool Behind() const;                           // and to be brought forward: no rollback is in the way
  std::chrono::milliseconds UntilRetry() const;  // of a sync that failed; over, or none did: not above 0
  v1::SessionState State(const VersionRef& held, const VersionRef& newest) const;  // as it is shown
  v1::SessionState Resting() const;                                                // Waiting, Held or BackingOff
  Result<replica::Rollback> Choose(const v1::RollbackRequest& request) const;
  Status CheckHeld(const replica::Rollback& chosen) const;
  Status Return(const replica::Rollback& chosen);
  std::stop_token BeginEndable();
  bool MayGiveUp();
  replica::PublishedVersion Other() const;
  Status RunSync(Sync& sync);
  bool Ended(const Status& status) const;
  void Conclude(const Sync& sync, const Status& status, const telemetry::Moment& begun);
  bool IsSettled(const engine::Engine& engine);
  void Answer();

  const SessionOptions options_;
  ChangeSignal
      changed_;  // of whatever the session's thread waits for, and of its answers; the archiver's thread uses it
  const std::unique_ptr<origin::Origin> origin_;
  const std::unique_ptr<replica::ReplicaPair> replicas_;
  const std::unique_ptr<archive::Archiver> archiver_;
  SyncFeed& feed_;
  Orders orders_;
  std::stop_source stop_;  // what waits for the origin, but for the sync that runs
  const SyncContext context_;
  SyncHistory history_;
  Backoff backoff_;
  std::chrono::steady_clock::time_point sync_again_;  // after a failure, not before, unless a pull asks for it
  replica::Scrubber scrubber_;
  Backoff repair_backoff_{std::chrono::minutes(5), std::chrono::seconds(1)};
  std::chrono::steady_clock::time_point repair_again_;  // of a current version that is damaged: not before
  bool drop_failed_ = false;                            // of another one; it was logged
  std::atomic<v1::SessionState> state_ = v1::SESSION_STATE_WAITING;
  std::atomic<bool> ended_ = false;
  Freshness freshness_;
  const int64_t made_unix_ns_ = telemetry::UnixNanos();
  bool stale_ = false;    // the log's head; it was logged
  bool late_ = false;     // an attempt at an engine; it was logged
  bool in_step_ = false;  // with the origin, once

  uint64_t number_ = 1;             // of the current version; rises when it is to be given to engines at once
  std::string mode_ = "recovered";  // how it came
  uint64_t transfer_ = 0;           // and by which pull; 0: none
  std::optional<Unanswered> unanswered_;

  Mutex mutex_;
  std::optional<replica::Rollback> rollback_ LS_GUARDED_BY(mutex_);  // that is asked for, and not answered
  std::stop_source endable_ LS_GUARDED_BY(mutex_);                   // what a rollback ends: the sync, or a call
  VersionRef given_up_;  // of the other replica, which that sync writes over; the loop changes it, under mutex_

  // Their threads call back: they end before what is above.
  VersionFollower follower_;
  receipts::ServingLedger ledger_;
  const engine::EngineContext engine_context_;
  engine::Engines engines_;
  Reporter reporter_;
  std::thread thread_;
};

}  // namespace lockstep::session

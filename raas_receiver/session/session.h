// The session of one model: an explicit state machine on a thread of its own that keeps its replicas in step with the
// agent.
//
//   Waiting --(a newer version, or a Pull)--> the states of Sync --> Notifying --> Waiting
//      |                                         |
//      |                                         +--(error)--> BackingOff --> the states of Sync
//      +--(Rollback)--> Notifying --> Held --(Pull)--> the states of Sync
//
// Threads: everything public may be called from any thread. Replicas are only ever driven by the session's own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/session/agent_client.h"
#include "raas_receiver/session/backoff.h"
#include "raas_receiver/session/engine_side.h"
#include "raas_receiver/session/sync.h"
#include "raas_receiver/session/sync_feed.h"
#include "raas_receiver/session/version_watch.h"

namespace lockstep {

struct SessionOptions {
  std::string model;
  std::string receiver;  // this receiver's name
  HostPort agent;
  size_t lanes = 4;
  bool follow = true;  // sync by itself when there is a newer version
  bool live = true;    // and take deltas while they are made
  EngineSideOptions engine;
  Timeline* timeline = nullptr;  // where spans go, when not null; outlives the session
};

class Session {
 public:
  // `replicas` were opened for the model, `driver` tells its engine; `io`, `pool` and `feed` outlive the session.
  Session(SessionOptions options, std::unique_ptr<ReplicaPair> replicas, std::unique_ptr<EngineDriver> driver,
          IoThreads& io, WorkerPool& pool, SyncFeed& feed);
  ~Session();

  void Start();
  // Tells the session to end. Pulls are given up at once; what is being committed is finished.
  void RequestStop();
  // Waits until it has ended; past `timeout` a call to the engine that still runs is given up.
  void Join(std::chrono::milliseconds timeout);

  const std::string& model() const { return options_.model; }
  v1::ReceiverModel Describe() const;
  bool HoldsVersion() const { return !replicas_->current().held.nothing(); }
  // Syncs now and answers how it went. An error is why nothing was committed; kDeadline when it took longer than
  // `timeout`, and kCancelled when `given_up` says that nobody waits any more: the sync itself goes on.
  Result<v1::SyncRecord> Pull(bool force_full, std::chrono::milliseconds timeout,
                              const std::function<bool()>& given_up);
  // Makes the version before current again, tells the engine, and holds it until the next Pull or restart. kState when
  // there is none; the engine's error when it does not take it.
  Result<v1::ReceiverModel> Rollback(const std::function<bool()>& given_up);
  Result<VerifyReport> Verify() const { return replicas_->Verify(); }
  // Compares the memory of engines that are written in place with the current version. kCorrupt names the engine and
  // rank that differs, kState the engine that is at another version.
  Status VerifyEngines(const std::function<bool()>& given_up);
  // Where the ranks of engines attach.
  EngineTargets& targets() { return engine_.targets(); }
  // kNotFound before the first layout is known.
  Result<std::shared_ptr<const ModelLayout>> layout() const;

 private:
  // What the service's threads ask of the session's thread; it answers the numbers it has reached.
  struct Orders {
    uint64_t pulls = 0;      // Pull calls so far
    uint64_t rollbacks = 0;  // Rollback calls so far
    uint64_t verifies = 0;   // VerifyEngines calls so far
    bool force_full = false;
  };

  void Loop();
  v1::SessionState Wait();
  v1::SessionState Synchronize();
  v1::SessionState BackOff();
  v1::SessionState RollBack();
  void TendEngines();
  void LookAtEngine();

  bool Wanted() const;      // a sync; REQUIRES mutex_
  bool Unprepared() const;  // a layout was announced that no memory was taken for; REQUIRES mutex_
  bool Prepare();
  Status CheckOlderVersion() const;
  void OnVersion(const v1::VersionEvent& event);
  void OnBroken(const Status& status);
  SyncOrder TakeOrder(Orders& taken, Held& newest);
  void FollowLive(const Sync& sync);
  void FinishSync(const Status& status, const Sync& sync, const v1::SyncRecord& record, const Orders& taken);
  bool EngineWaits() const;                            // REQUIRES mutex_
  std::chrono::milliseconds UntilEngineRetry() const;  // REQUIRES mutex_
  void ServeAgain(const std::string& mode);
  ServeOutcome Serve(const std::string& mode, uint64_t transfer = 0);
  void EnterState(v1::SessionState state);
  template <typename Done>
  Status Await(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout,
               const std::function<bool()>& given_up, Done done);

  const SessionOptions options_;
  const std::unique_ptr<ReplicaPair> replicas_;
  SyncFeed& feed_;
  AgentClient agent_;
  LiveLink live_;
  std::optional<bool> beside_agent_;  // the session's thread's; as Sync::beside_agent
  SyncContext context_;
  Backoff backoff_;
  Backoff engine_backoff_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool ended_ = false;
  v1::SessionState state_ = v1::SESSION_STATE_WAITING;
  Orders wanted_;
  Orders done_;
  Status pull_outcome_;      // of the last sync
  Status rollback_outcome_;  // of the last rollback
  Status verify_outcome_;    // of the last comparison of engines' memory
  v1::SyncRecord last_record_;
  Sync* running_ = nullptr;
  Held newest_;  // that the agent announced
  LayoutDigest agent_layout_;
  LayoutDigest prepared_;  // the last layout that memory was taken for, or tried to be
  std::shared_ptr<const ModelLayout> layout_;
  Held served_;                                        // that the engine took, by the directory
  std::chrono::steady_clock::time_point serve_again_;  // not before, after a failure
  std::chrono::steady_clock::time_point look_again_;   // the session's thread's
  std::string last_error_;                             // of the last sync
  std::string watch_error_;                            // why the version stream is down
  uint64_t repaired_blocks_ = 0;
  uint64_t syncs_ = 0;
  uint64_t failures_ = 0;
  uint64_t lane_retries_ = 0;

  EngineSide engine_;  // its threads call back: it ends before what is above
  std::unique_ptr<VersionWatch> watch_;
  std::thread thread_;
};

}  // namespace lockstep

// The session of one model: an explicit state machine on a thread of its own that keeps its replicas in step with the
// agent.
//
//   Waiting --(a newer version, or a Pull)--> the states of Sync --> Notifying --> Waiting
//      |                                         |
//      |                                         +--(error)--> BackingOff --> the states of Sync
//      +--(Rollback)--> Notifying --> Held --(Pull)--> the states of Sync
//
// It decides on what others know: Requests what the service's threads ask for, VersionFollower what the agent
// announced, EngineSupervisor what engines serve. Each has a lock of its own, held for no call to another.
//
// Threads: everything public may be called from any thread. Replicas are only ever driven by the session's own.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/backoff.h"
#include "common/base/status.h"
#include "common/rpc/tls.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/session/agent_client.h"
#include "raas_receiver/session/change_signal.h"
#include "raas_receiver/session/engine_supervisor.h"
#include "raas_receiver/session/live_link.h"
#include "raas_receiver/session/requests.h"
#include "raas_receiver/session/sync.h"
#include "raas_receiver/session/sync_feed.h"
#include "raas_receiver/session/sync_history.h"
#include "raas_receiver/session/version_follower.h"

namespace lockstep::session {

struct SessionOptions {
  std::string model;
  std::string receiver;  // this receiver's name
  net::ControlAddress agent;
  rpc::TlsOptions tls;  // of calls to the agent
  size_t lanes = 4;
  bool follow = true;  // sync whenever there is a newer version
  bool live = true;    // and take deltas while they are made
  EngineSupervisorOptions engine;
  telemetry::Timeline* timeline = nullptr;  // where spans go, when not null; outlives the session
};

class Session {
 public:
  // `replicas` were opened for the model, `driver` notifies its engine; `io`, `pool` and `feed` outlive the session.
  Session(SessionOptions options, std::unique_ptr<replica::ReplicaPair> replicas,
          std::unique_ptr<engines::EngineDriver> driver, net::IoThreads& io, WorkerPool& pool, SyncFeed& feed);
  ~Session();

  void Start();
  // Makes the session end. Pulls are cancelled at once; what is being committed is finished.
  void RequestStop();
  // Waits until it has ended; past `timeout` a call to the engine that still runs is cancelled.
  void Join(std::chrono::milliseconds timeout);

  const std::string& model() const { return options_.model; }
  v1::ReceiverModel Describe() const;
  bool HoldsVersion() const { return !replicas_->current().held.nothing(); }
  // Syncs now and answers how it went. An error is why nothing was committed; kDeadline when it took longer than
  // `timeout`, and kCancelled when `cancelled` says that the caller has gone: the sync itself continues.
  Result<v1::SyncRecord> Pull(bool force_full, std::chrono::milliseconds timeout, const Requests::Cancelled& cancelled);
  // Makes the version before current again, notifies the engine, and holds it until the next Pull or restart. kState
  // when there is none; the engine's error when it does not take it.
  Result<v1::ReceiverModel> Rollback(const Requests::Cancelled& cancelled);
  Result<replica::VerifyReport> Verify() const { return replicas_->Verify(); }
  // Compares the memory of engines that are written in place with the current version. kCorrupt names the engine and
  // rank that differs, kState the engine that is at another version.
  Status VerifyEngines(const Requests::Cancelled& cancelled);
  // Where the ranks of engines attach.
  targets::EngineTargets& targets() { return engine_.targets(); }
  // kNotFound before the first layout is known.
  Result<std::shared_ptr<const model::ModelLayout>> layout() const;

 private:
  void Loop();
  v1::SessionState Wait();
  v1::SessionState Synchronize();
  v1::SessionState BackOff();
  v1::SessionState RollBack();

  // What it waits for, in any state.
  bool SyncDue() const;
  bool EngineDue() const { return requests_.due(Requests::kVerify) || engine_.Due(); }

  Status SwitchToOlder();
  Status RunSync(Sync& sync);
  void FollowLive(const Sync& sync);
  void TendEngine();
  void ServeAgain(const std::string& mode);
  EngineOutcome Serve(const std::string& mode, uint64_t transfer = 0);

  const SessionOptions options_;
  const std::unique_ptr<replica::ReplicaPair> replicas_;
  SyncFeed& feed_;
  ChangeSignal changed_;  // of whatever the session's thread waits for, and of its answers
  Requests requests_;
  AgentClient agent_;
  LiveLink live_;
  SyncContext context_;
  SyncHistory history_;
  Backoff backoff_;
  std::atomic<v1::SessionState> state_ = v1::SESSION_STATE_WAITING;
  std::atomic<bool> ended_ = false;

  std::mutex mutex_;
  Sync* running_ = nullptr;  // guarded by mutex_

  // Their threads call back: they end before what is above.
  VersionFollower follower_;
  EngineSupervisor engine_;
  std::thread thread_;
};

}  // namespace lockstep::session

// One sync: from what the receiver holds to the agent's newest version, as an explicit state machine.
//
//   Negotiate --> PullDelta ------------> Verify --> Apply --> [Repair] --> Commit
//       |                                   ^
//       +-----> PullFull --> [CatchUp] -----+
//       +-----> Switch          (the other replica holds the target already)
//       +-----> done            (up to date)
//
// Any state may fail: then the target replica holds nothing, the current one is untouched, and the agent is told why.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/net/io_threads.h"
#include "common/telemetry/timeline.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/pull/lane_set.h"
#include "raas_receiver/pull/local_source.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/session/agent_client.h"
#include "raas_receiver/session/live_link.h"
#include "raas_receiver/session/plan.h"
#include "raas_receiver/session/staging.h"

namespace lockstep {

// What all syncs of a session share.
struct SyncContext {
  std::string model;
  std::string receiver;
  size_t lanes = 4;
  AgentClient& agent;
  ReplicaPair& replicas;
  IoThreads& io;
  LiveLink& live;
  uint64_t link_bytes_per_s = 0;  // what lanes last carried together; 0: not known
  Timeline* timeline = nullptr;
};

// What is wanted of one sync.
struct SyncOrder {
  bool force_full = false;
  std::shared_ptr<const ModelLayout> layout;  // the last one known; null: none
  LayoutDigest agent_layout;                  // the one the agent announced; zero: not known
};

// Run once, on the session's thread. Cancel may be called from any.
class Sync {
 public:
  using EnterState = std::function<void(v1::SessionState)>;

  Sync(SyncContext& context, SyncOrder order, EnterState enter);

  // OK: the newest version is current (or was already). kCancelled after Cancel.
  Status Run();
  void Cancel();

  const v1::SyncRecord& record() const { return record_; }  // once Run has returned
  const std::shared_ptr<const ModelLayout>& layout() const { return order_.layout; }
  uint64_t lane_retries() const { return lane_retries_; }
  // Deltas come out of the agent's memory here, so that there is nothing to gain from those in the making.
  bool beside_agent() const { return beside_agent_; }

 private:
  enum class State { kNegotiate, kPullDelta, kPullFull, kCatchUp, kVerify, kApply, kRepair, kCommit, kSwitch, kDone };
  using Clock = std::chrono::steady_clock;

  Status RunStates();
  Result<State> Enter(State state);
  Result<State> Negotiate();
  Result<State> PullDelta();
  Result<State> PullFull();
  Result<State> CatchUp();
  Result<State> Verify();
  Result<State> Apply();
  Result<State> Repair();
  Result<State> Commit();
  Result<State> Switch();

  Status LearnLayout();
  void OpenLocal();
  void TakeLocal(const RunId& run);
  void TakeLive(const Held& base);
  void CountBytes();
  Status OpenLanes();
  Status FetchDeltas(const Held& base, const ManifestDigest& base_digest);
  Status FetchFull(const std::vector<BlockIndex>& blocks, Version version, bool exact);
  Status FetchByLanes(const std::vector<BlockRun>& runs, BlockSink& sink);
  void Close(const Status& status);
  void RecordTarget();
  Span SpanOf(std::string_view name) const;
  static std::string_view SpanName(State state);
  void AddSpanOf(State state, const Moment& begun, uint64_t bytes_before);
  uint64_t PulledBytes() const { return record_.payload_bytes() - record_.live_bytes(); }

  SyncContext& context_;
  SyncOrder order_;
  EnterState enter_;
  v1::SyncRecord record_;
  PublishedVersion base_;
  Plan plan_;
  std::unique_ptr<DeltaStaging> deltas_;
  std::unique_ptr<FullStaging> full_;
  DeltaChain chain_;                 // verified, to be applied
  std::vector<uint64_t> expected_;   // block hashes of the target
  std::vector<BlockIndex> damaged_;  // blocks that did not get their hash
  uint64_t lane_retries_ = 0;
  uint64_t live_bytes_ = 0;
  bool beside_agent_ = false;

  std::mutex mutex_;                    // guards local_, lanes_ and cancelled_ against Cancel
  std::unique_ptr<LocalSource> local_;  // null: the agent is not on this host, or not in our sight
  std::unique_ptr<LaneSet> lanes_;      // opened when something is wanted of them
  bool cancelled_ = false;
};

}  // namespace lockstep

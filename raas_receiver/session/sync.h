// One sync: from what the receiver holds to the origin's newest version, as an explicit state machine.
//
//   Negotiate --> PullDelta ------------> Verify --> Apply --> [Repair] --> Commit
//       |                                   ^
//       +-----> PullFull --> [CatchUp] -----+
//       +-----> Switch          (the other replica holds the target already)
//       +-----> done            (up to date)
//
//   Apply --> [Repair] --> Commit     (of what is held, which is damaged: made again in the other replica)
//
// Any state may fail. The target replica then holds what it held, if its state was not removed yet, or nothing. The
// current one is untouched. An origin that was asked is told the reason.
#pragma once

#include <atomic>
#include <memory>
#include <stop_token>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/telemetry/timeline.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/archive/archiver.h"
#include "raas_receiver/origin/origin.h"
#include "raas_receiver/replica/replica_pair.h"

namespace lockstep::session {

// What all syncs of a session share.
struct SyncContext {
  std::string model;
  origin::Origin& origin;
  replica::ReplicaPair& replicas;
  archive::Archiver* archiver = nullptr;  // null: versions go to no log
  telemetry::Timeline* timeline = nullptr;
};

// What is wanted of one sync.
struct SyncRequest {
  // Run ends soon then: a call is not waited for, nor are bytes; what is being applied, or committed, is first.
  std::stop_token stop;
  bool force_full = false;
  bool repair = false;     // not the newest version: the current one again, which is damaged; `layout` is its
  origin::Layout layout;   // the last one known; null: none
  LayoutDigest announced;  // of the layout that the origin announced; zero: not known
  VersionRef skipped;      // a version that is not made current; nothing: any may be
};

// Run once, on the session's thread.
class Sync {
 public:
  // `context` and `shown`, which status shows meanwhile, outlive this.
  Sync(const SyncContext& context, SyncRequest request, std::atomic<v1::SessionState>& shown);

  // OK: the newest version is current (or was already), or one on the way there, or the current one is whole again.
  // kCancelled after a stop.
  Status Run();

  const v1::SyncRecord& record() const { return record_; }  // once Run has returned
  const origin::Layout& layout() const { return request_.layout; }
  const replica::PublishedVersion& base() const { return base_; }  // what was current before
  bool forced() const { return request_.force_full; }
  bool goes_on() const { return plan_.goes_on; }  // a sync more is needed for the newest version
  uint64_t lane_retries() const { return lane_retries_; }

 private:
  // In the order of RowOf.
  enum class State { kNegotiate, kPullDelta, kPullFull, kCatchUp, kVerify, kApply, kRepair, kCommit, kSwitch, kDone };
  Status RunStates();
  struct StateRow;
  static const StateRow& RowOf(State state);
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
  Status OpenPull();
  Status CheckWanted() const;
  void TargetHeld();
  Status OpenForLost();
  Status FetchDeltas(const ManifestDigest& base_digest);
  void CountBytes();
  void RecordTarget();
  void StageBlocks();
  telemetry::Span SpanOf(std::string_view name) const;
  void AddSpanOf(std::string_view name, const telemetry::Moment& begun, uint64_t bytes_before);
  uint64_t PulledBytes() const { return record_.payload_bytes() - record_.streamed_bytes(); }

  const SyncContext& context_;
  SyncRequest request_;
  std::atomic<v1::SessionState>& shown_;
  v1::SyncRecord record_;
  replica::PublishedVersion base_;
  std::unique_ptr<origin::Pull> pull_;
  origin::Plan plan_;
  std::unique_ptr<origin::FullStaging> full_;
  payload::DeltaChain chain_;        // verified, to be applied
  std::vector<uint64_t> expected_;   // block hashes of the target
  std::vector<BlockIndex> damaged_;  // blocks that did not get their hash
  uint64_t lane_retries_ = 0;
};

}  // namespace lockstep::session

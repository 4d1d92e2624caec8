// Subscription: asks an agent for deltas while they are made (common/wire/FORMAT.md, "Streaming deltas"). For
// AgentOrigin.
//
// After each sync the session asks for the delta that starts at the held version. When the next version is announced,
// its blocks are here already, or on their way. A subscription only saves time: blocks that it lacks are pulled. Its
// lanes are those of a standing pull, and may be idle for hours; the system's keepalive finds peers that are gone.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "common/telemetry/timeline.h"
#include "raas_receiver/origin/agent_origin.h"
#include "raas_receiver/origin/agent_plan.h"
#include "raas_receiver/pull/lane_set.h"

namespace lockstep::origin {

// A source of the deltas that it asked for, and of nothing else. One thread calls; Cancel and counters may be called
// from any.
class Subscription final : public pull::BlockSource, private pull::BlockSink {
 public:
  // The arguments outlive the subscription.
  Subscription(const AgentOriginOptions& options, AgentClient& agent, net::IoThreads& io)
      : options_(options), agent_(agent), io_(io) {}

  // Asks for the delta that follows from.held; opens lanes when there are none, or one was lost. Discards blocks that
  // came before. Waits for at most two calls to the agent.
  void Ask(const Want& from, std::stop_token stop);
  // Whether a delta was asked for, and not yet taken.
  bool asked() const { return lanes_ != nullptr && !base_.nothing(); }
  // Ends the subscription, until something is asked for again.
  void Close();

  std::string_view name() const override { return "streaming"; }
  Status FetchBlocks(const pull::FullRequest& request, pull::BlockSink& sink) override;
  // Fetches the one step that was asked for: all of its blocks, each once. Waits for the rest of it as long as it keeps
  // coming. kDeadline: nothing came for options.patience. kAborted: the version was aborted. kState: the agent's newest
  // version, or the step, is another one. A lane's error names peer and lane.
  Status FetchDeltas(const pull::DeltaRequest& request, pull::DeltaSink& sink) override;
  // Ends the fetch in progress, and gives the delta up that was asked for.
  void Cancel() override;
  // The counters of the delta that was asked for last.
  pull::SourceCounters counters() const override;

 private:
  struct Delta {
    Version target = 0;
    std::vector<payload::DeltaBlock> blocks;
    std::vector<bool> here;                       // by block
    uint64_t bytes = 0;                           // of the blocks' coded data; at most the model's
    std::chrono::steady_clock::time_point begun;  // when the first block was here
    std::chrono::steady_clock::time_point ended;  // and the last one
  };

  Status Open(const Want& from, std::stop_token stop);
  Result<Delta> Take(const VersionRef& base, const pull::DeltaStep& step);
  void AddSpanOf(const Delta& delta, const RunId& run) const;

  // BlockSink, which I/O threads call.
  std::span<std::byte> Destination(const wire::FrameHeader&) override { return {}; }
  Status Put(const wire::FrameHeader& frame, ByteView payload) override;
  Status EndShare(Version target) override;
  Status AgreeOnTarget(Version target) LS_REQUIRES(mutex_);

  const AgentOriginOptions& options_;
  AgentClient& agent_;
  net::IoThreads& io_;
  uint64_t pull_id_ = 0;
  uint32_t shares_ = 0;                               // lanes, each of which brings one
  VersionRef base_;                                   // of the delta that was asked for; nothing: none was
  Layout layout_;                                     // of the lanes; changed while there are none
  std::chrono::steady_clock::time_point open_again_;  // not before, after a failure

  mutable Mutex mutex_;  // also held while lanes_ is changed, and by Cancel
  Delta delta_ LS_GUARDED_BY(mutex_);
  pull::SourceCounters counters_ LS_GUARDED_BY(mutex_);
  std::unique_ptr<pull::LaneSet> lanes_;  // last: its threads use the others
};

}  // namespace lockstep::origin

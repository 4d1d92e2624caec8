// Subscription: asks an agent for deltas while they are made. For AgentOrigin.
//
// After each sync the session asks for the delta that starts at the held version. When the next version is announced,
// its blocks are here already, or on their way. A subscription only saves time: blocks that it lacks are pulled.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "common/base/mutex.h"
#include "common/telemetry/timeline.h"
#include "raas_receiver/origin/agent_origin.h"
#include "raas_receiver/origin/agent_plan.h"
#include "raas_receiver/pull/standing_pull.h"

namespace lockstep::origin {

// A source of the deltas that it asked for, and of nothing else. One thread calls; Cancel and counters may be called
// from any.
class Subscription final : public pull::BlockSource {
 public:
  // The arguments outlive the subscription.
  Subscription(const AgentOriginOptions& options, AgentClient& agent, net::IoThreads& io)
      : options_(options), agent_(agent), io_(io) {}

  // Asks for the delta that follows from.held; opens lanes when there are none. Waits for one call to the agent.
  void Ask(const Want& from, std::stop_token stop);
  // Whether a delta was asked for, and not yet taken.
  bool asked() const { return standing_ != nullptr && !base_.nothing(); }
  // Ends the subscription, until something is asked for again.
  void Close();

  std::string_view name() const override { return "streaming"; }
  Status FetchBlocks(const pull::FullRequest& request, pull::BlockSink& sink) override;
  // Fetches the one step that was asked for. Waits for the rest of it as long as it keeps coming.
  Status FetchDeltas(const pull::DeltaRequest& request, pull::DeltaSink& sink) override;
  // Ends the fetch in progress, and gives the delta up that was asked for.
  void Cancel() override;
  // The counters of the delta that was asked for last.
  pull::SourceCounters counters() const override;

 private:
  Status Open(const Want& from, std::stop_token stop);
  Result<pull::StandingPull::Delta> Take(const VersionRef& base, const pull::DeltaStep& step);
  void AddSpanOf(const pull::StandingPull::Delta& delta, const RunId& run) const;

  const AgentOriginOptions& options_;
  AgentClient& agent_;
  net::IoThreads& io_;
  uint64_t pull_id_ = 0;
  std::atomic<bool> in_plaintext_ = false;
  std::atomic<uint64_t> bytes_ = 0;  // taken of the delta that was asked for last
  VersionRef base_;                  // of the delta that was asked for; nothing: none was
  LayoutDigest layout_;
  std::chrono::steady_clock::time_point open_again_;  // not before, after a failure

  Mutex mutex_;  // held while standing_ is changed, and by Cancel
  std::unique_ptr<pull::StandingPull> standing_;
};

}  // namespace lockstep::origin

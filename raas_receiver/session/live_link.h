// LiveLink: the session's subscription to deltas that are sent while they are made.
//
// After each sync the session asks for the delta that starts at what it holds; when the next version is announced its
// blocks are here already, or on their way. It only ever spares a wait: what does not come live is pulled.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/telemetry/timeline.h"
#include "raas_receiver/pull/live_lanes.h"
#include "raas_receiver/session/agent_client.h"
#include "raas_receiver/session/plan.h"

namespace lockstep {

struct LiveLinkOptions {
  std::string model;
  std::string receiver;
  size_t lanes = 4;
  bool enabled = true;
  Timeline* timeline = nullptr;  // as SessionOptions::timeline
};

// The session's thread calls; Cancel may be called from any.
class LiveLink {
 public:
  // `agent` and `io` outlive this.
  LiveLink(LiveLinkOptions options, AgentClient& agent, IoThreads& io)
      : options_(std::move(options)), agent_(agent), io_(io) {}

  // Asks for the delta from `held` on, over lanes that are opened when there are none. `link_bytes_per_s` as in
  // OpenPullRequest. Waits for no more than a call to the agent.
  void Follow(const Held& held, const std::shared_ptr<const ModelLayout>& layout, uint64_t link_bytes_per_s);
  // The blocks of `step`, which starts at `base`, when that is the delta asked for and all of it came live: waits for
  // the rest of it as long as it keeps coming. No value: pull it.
  std::optional<std::vector<DeltaBlock>> Take(const Held& base, const PlanStep& step);
  // Ends the subscription: the session follows by other ways, or not at all.
  void Close();

  // Makes Take give up soon, now and later.
  void Cancel();

 private:
  Status Open(const std::shared_ptr<const ModelLayout>& layout, uint64_t link_bytes_per_s);
  void AddSpanOf(const LiveLanes::Delta& delta, const Held& base) const;

  const LiveLinkOptions options_;
  AgentClient& agent_;
  IoThreads& io_;
  uint64_t pull_id_ = 0;
  Held asked_;  // the base; nothing: nothing was asked
  LayoutDigest layout_;
  std::chrono::steady_clock::time_point open_again_;  // not before, after a failure

  std::mutex mutex_;  // guards lanes_ and cancelled_ against Cancel
  std::unique_ptr<LiveLanes> lanes_;
  bool cancelled_ = false;
};

}  // namespace lockstep

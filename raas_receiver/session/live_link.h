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
#include <vector>

#include "common/telemetry/timeline.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/pull/live_pull.h"
#include "raas_receiver/session/agent_client.h"
#include "raas_receiver/session/plan.h"

namespace lockstep::session {

struct LiveLinkOptions {
  std::string model;
  std::string receiver;
  size_t lanes = 4;
  bool enabled = true;
  telemetry::Timeline* timeline = nullptr;  // as SessionOptions::timeline
};

// The session's thread calls; Cancel may be called from any.
class LiveLink {
 public:
  // `agent` and `io` outlive this.
  LiveLink(LiveLinkOptions options, AgentClient& agent, net::IoThreads& io)
      : options_(std::move(options)), agent_(agent), io_(io) {}

  // After a sync that left `record`, with `held` current: asks for the delta from there on, over lanes that are opened
  // when there are none; or ends the subscription where deltas come out of the agent's memory, so that there is nothing
  // to gain.  Waits for no more than a call to the agent.
  void Follow(const v1::SyncRecord& record, const Held& held, const Layout& layout);
  // Whether a delta was asked for, and not yet taken.
  bool following() const { return lanes_ != nullptr && !asked_.nothing(); }
  // The entries of `step`, of versions of `run`, when that is the delta asked for and all of it came live: waits for
  // the rest of it as long as it keeps coming. An error: fetch it by other ways.
  Result<std::vector<payload::DeltaBlock>> Take(const RunId& run, const pull::DeltaStep& step);
  // Whether what it collects came over a network in plaintext.
  bool in_plaintext() const { return in_plaintext_; }
  // Ends the subscription: the session follows by other ways, or not at all.
  void Close();

  // Makes Take fail soon, now and later.
  void Cancel();

 private:
  void Ask(const Held& held, const Layout& layout);
  Status Open(const Layout& layout);
  void AddSpanOf(const pull::LivePull::Delta& delta, const RunId& run) const;

  const LiveLinkOptions options_;
  AgentClient& agent_;
  net::IoThreads& io_;
  uint64_t pull_id_ = 0;
  bool in_plaintext_ = false;
  Held asked_;  // the base; nothing: nothing was asked
  LayoutDigest layout_;
  std::optional<bool> by_memory_;                     // deltas come out of the agent's memory; nothing: not known yet
  std::chrono::steady_clock::time_point open_again_;  // not before, after a failure

  std::mutex mutex_;  // guards lanes_ and cancelled_ against Cancel
  std::unique_ptr<pull::LivePull> lanes_;
  bool cancelled_ = false;
};

}  // namespace lockstep::session

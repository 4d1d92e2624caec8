// Reporter: tells the agent what a session's receiver holds, what its engine serves, and its last error, when that
// changes and now and then; and finds out whether the agent has the model at all.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "proto/lockstep/v1/agent.pb.h"
#include "raas_receiver/session/agent_client.h"
#include "raas_receiver/session/change_signal.h"

namespace lockstep::session {

class Reporter {
 public:
  using Snapshot = std::function<v1::ReportRequest()>;
  // How often the agent was met so far: one that was restarted has to be told again.
  using Meetings = std::function<uint64_t()>;

  // `changed` is notified whenever `snapshot` or `meetings`, called on the reporter's thread, may answer otherwise. All
  // of them outlive this.
  Reporter(AgentClient& agent, ChangeSignal& changed, Snapshot snapshot, Meetings meetings);

  // Reports on a thread of its own. An agent that does not answer is tried again; an older one may not know the call.
  // It is to be stopped and joined before the destruction.
  void Start();
  void RequestStop();
  void Join();

  // Why no version will come, as far as the agent says; empty: there is no such reason. Any thread.
  std::string error() const;

 private:
  void Loop();
  bool Send(const v1::ReportRequest& report);
  bool SetError(const std::string& error);  // whether it is another than before

  AgentClient& agent_;
  ChangeSignal& changed_;
  const Snapshot snapshot_;
  const Meetings meetings_;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  std::string error_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace lockstep::session

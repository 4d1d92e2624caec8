// Follows the agent's version stream on a thread of its own, across streams that are lost and agents that are
// restarted.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "raas_receiver/session/agent_client.h"

namespace lockstep::session {

// Callbacks come on the watch's thread. The destructor stops and joins.
class VersionWatch {
 public:
  struct Callbacks {
    std::function<void(const v1::VersionEvent&)> on_version;
    std::function<void(const Status&)> on_lost;  // the stream ended; it will be opened again
  };

  // `agent` outlives the watch; its Cancel() ends a stream in progress.
  VersionWatch(AgentClient& agent, std::string model, Callbacks callbacks);
  ~VersionWatch();

 private:
  void Loop();

  AgentClient& agent_;
  const std::string model_;
  const Callbacks callbacks_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep::session

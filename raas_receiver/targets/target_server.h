// TargetServer: where engine ranks attach: a unix socket, and which model's targets each one is for.
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/os/unix_listener.h"
#include "raas_receiver/targets/engine_targets.h"
#include "raas_receiver/targets/messages.h"

namespace lockstep::targets {

class TargetServer {
 public:
  // Listens at `path` and gives each rank to its model's targets, which outlive this. A peer of another user than this
  // process' or root's is refused, as is a model that nobody follows, and one that has not sent ATTACH within
  // `attach_timeout` is dropped. kUnavailable, kBadData as UnixListener::Create.
  static Result<std::unique_ptr<TargetServer>> Start(
      const std::string& path, std::map<std::string, EngineTargets*> models,
      std::chrono::milliseconds attach_timeout = std::chrono::seconds(10));
  // No more ranks are taken; those attached stay.
  ~TargetServer();

 private:
  struct PendingPeer {  // a peer that has not sent ATTACH yet, and its thread
    os::UnixConnection connection;
    std::thread thread;
    bool finished = false;
  };

  TargetServer(os::UnixListener listener, std::map<std::string, EngineTargets*> models,
               std::chrono::milliseconds attach_timeout);
  void AcceptLoop();
  void ReapFinished();
  void AttachPeer(PendingPeer& peer);
  Result<EngineMessage> ReceiveAttach(os::UnixConnection& connection) const;
  Status AttachRank(os::UnixConnection& connection, EngineMessage attach) const;

  os::UnixListener listener_;
  const std::map<std::string, EngineTargets*> models_;
  const std::chrono::milliseconds attach_timeout_;
  std::mutex mutex_;
  std::list<PendingPeer> pending_;
  std::thread acceptor_;
};

}  // namespace lockstep::targets

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

namespace lockstep {

class TargetServer {
 public:
  // Listens at `path` and hands each rank to its model's targets, which outlive this. A peer of another user than this
  // process' or root's is refused, as is a model that nobody follows, and one that has not said ATTACH within
  // `hello_timeout` is dropped. kUnavailable, kBadData as UnixListener::Create.
  static Result<std::unique_ptr<TargetServer>> Start(
      const std::string& path, std::map<std::string, EngineTargets*> models,
      std::chrono::milliseconds hello_timeout = std::chrono::seconds(10));
  // No more ranks are taken; those attached stay.
  ~TargetServer();

 private:
  struct Hello {  // a peer that has not said ATTACH yet, and its thread
    UnixConnection connection;
    std::thread thread;
    bool finished = false;
  };

  TargetServer(UnixListener listener, std::map<std::string, EngineTargets*> models,
               std::chrono::milliseconds hello_timeout);
  void AcceptLoop();
  void ReapFinished();
  void Greet(Hello& hello);
  Result<EngineMessage> ReceiveAttach(UnixConnection& connection) const;
  Status TakeRank(UnixConnection& connection, EngineMessage attach) const;

  UnixListener listener_;
  const std::map<std::string, EngineTargets*> models_;
  const std::chrono::milliseconds hello_timeout_;
  std::mutex mutex_;
  std::list<Hello> hellos_;
  std::thread acceptor_;
};

}  // namespace lockstep

// TargetServer: where engine ranks attach: a unix socket, and which model's targets each one is for.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/os/unix_listener.h"
#include "raas_receiver/targets/engine_targets.h"

namespace lockstep {

class TargetServer {
 public:
  // Listens at `path` and hands each rank to its model's targets, which outlive this. A peer of another user than this
  // process' or root's is refused, as is a model that nobody follows. kUnavailable, kBadData as UnixListener::Create.
  static Result<std::unique_ptr<TargetServer>> Start(const std::string& path,
                                                     std::map<std::string, EngineTargets*> models);
  // No more ranks are taken; those attached stay.
  ~TargetServer();

 private:
  TargetServer(UnixListener listener, std::map<std::string, EngineTargets*> models);
  void Loop();

  UnixListener listener_;
  const std::map<std::string, EngineTargets*> models_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep

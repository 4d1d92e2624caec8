// RankServer: the agent's side of the rank protocol (trainer_agent/buffer/rank_messages.h), a thread per connected
// rank.
#pragma once

#include <memory>
#include <string>

#include "common/os/unix_server.h"
#include "trainer_agent/buffer/rank_messages.h"
#include "trainer_agent/publish/model_registry.h"

namespace lockstep::publish {

class RankServer {
 public:
  // Listens at once and lets ranks in. A peer whose uid is neither ours nor root's is refused. REQUIRES the registry to
  // outlive this.
  static Result<std::unique_ptr<RankServer>> Start(const std::string& socket_path, ModelRegistry* registry);
  // Ends every connection.
  ~RankServer() = default;

 private:
  RankServer() = default;

  std::unique_ptr<os::UnixServer> server_;
};

}  // namespace lockstep::publish

// RankServer: the agent's side of the rank protocol (trainer_agent/buffer/rank_messages.h), a thread per connected
// rank.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/os/unix_listener.h"
#include "trainer_agent/buffer/rank_messages.h"
#include "trainer_agent/publish/model_registry.h"

namespace lockstep {

class RankServer {
 public:
  // Listens at once and lets ranks in. A peer whose uid is neither ours nor root's is refused. REQUIRES the registry to
  // outlive this.
  static Result<std::unique_ptr<RankServer>> Start(const std::string& socket_path, ModelRegistry* registry);
  // Ends every connection and joins.
  ~RankServer();

 private:
  struct Session {
    UnixConnection connection;
    std::thread thread;
    bool finished = false;
  };

  RankServer(UnixListener listener, ModelRegistry* registry);
  void AcceptLoop();
  void ReapFinished();
  void Serve(Session& session);
  Status ServeRank(UnixConnection& connection);

  UnixListener listener_;
  ModelRegistry* const registry_;
  std::mutex mutex_;
  std::list<Session> sessions_;
  std::thread acceptor_;
};

}  // namespace lockstep

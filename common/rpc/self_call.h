// Internal to common/rpc: a call that a server makes to itself, to see whether its threads answer any.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>

#include <atomic>
#include <memory>
#include <string>

namespace lockstep::rpc {

// A service of one call, which does nothing, on the threads that all synchronous calls have. Its name is drawn by lot
// and told to nobody: for peers there is no such call. It outlives the server.
class EchoService final : public grpc::Service {
 public:
  EchoService();
  const std::string& call() const { return call_; }

 private:
  const std::string call_;
};

// Used by one thread.
class SelfCall {
 public:
  // REQUIRES that `server` has the service, and that both outlive this.
  SelfCall(grpc::Server& server, const EchoService& echo);

  // Whether one was answered since this was asked last; makes the next, when none is under way. One that is refused,
  // for there are no threads left, is not answered.
  bool Answered();

 private:
  struct State {
    std::atomic<bool> under_way = false;
    std::atomic<bool> answered = false;
  };

  const std::string& call_;
  const std::shared_ptr<grpc::Channel> channel_;  // within the process
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace lockstep::rpc

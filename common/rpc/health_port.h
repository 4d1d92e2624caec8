// A port of the standard health service alone, in plaintext: for kubelets and load balancers, which have no
// certificate.
#pragma once

#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/grpc_port.h"

namespace lockstep::rpc {

// Thread-safe.
class HealthPort {
 public:
  // `services`: those that may be asked for; all NOT_SERVING at first. kUnavailable, naming the address, when it cannot
  // be listened on.
  static Result<std::unique_ptr<HealthPort>> Create(const std::string& address,
                                                    const std::vector<std::string>& services);
  ~HealthPort();

  int bound_port() const { return port_->bound_port(); }
  void SetServing(const std::string& service, bool serving);
  // For good: watchers are told.
  void StopServing();

 private:
  explicit HealthPort(std::unique_ptr<GrpcPort> port);

  const std::unique_ptr<GrpcPort> port_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // gRPC wants one where there is no service but its own
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace lockstep::rpc

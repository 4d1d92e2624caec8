// A gRPC server with the standard health service (grpc.health.v1), started listening and ended by draining.
#pragma once

#include <grpcpp/server.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/os/unix_server.h"
#include "common/rpc/grpc_port.h"
#include "common/rpc/tls.h"

namespace lockstep::rpc {

// Answers up to this size pass: layouts and manifests of very large models are single messages. Requests are small.
inline constexpr int kMaxAnswerBytes = 256 << 20;
inline constexpr int kMaxRequestBytes = 1 << 20;

// Silences gRPC's own log, which would mix with lines that machines read. gRPC returns every error as a status, too.
void DropGrpcLog();

// Thread-safe. The destructor ends calls in progress at once; Drain() first for a gentle end.
class RpcServer {
 public:
  struct Options {
    std::string address;                   // host:port; port 0 lets the system choose; empty: no TCP
    std::string control_socket;            // for processes of our user and root; empty: none
    std::vector<grpc::Service*> services;  // at least one; not owned, they outlive the server
    TlsOptions tls;                        // what peers need to get in; not configured: nothing, all is plaintext
    // With TLS: whether the peer with this certificate may do anything here; null: each with a certificate may. One
    // that may not is disconnected.
    std::function<Status(const PeerCertificate&)> admit;
    std::vector<std::string> health_services;  // names that health checks may ask for at once; all NOT_SERVING
    // host:port where health alone is served, to any peer and in plaintext: kubelets and load balancers have no
    // certificate. Empty: nowhere.
    std::string health_address;
    // A TLS connection ends at this age: the next one checks the certificates. Its calls get `tls_age_grace` to end.
    std::chrono::milliseconds tls_age{60 * 60'000};
    std::chrono::milliseconds tls_age_grace{10 * 60'000};
  };

  // kUnavailable, naming the address or path, when it cannot be listened on.
  static Result<std::unique_ptr<RpcServer>> Create(const Options& options);
  ~RpcServer();

  int bound_port() const { return port_ == nullptr ? 0 : port_->bound_port(); }       // 0: no TCP
  int health_port() const { return health_ == nullptr ? 0 : health_->bound_port(); }  // 0: none

  struct Limits;

  // From now on health checks may ask for `health_service`, also where it is none of Options::health_services. Without
  // effect once draining.
  void SetServing(const std::string& health_service, bool serving);

  // Reports to health watchers that nothing is served any more, for good. Calls continue.
  void StopServing();

  // StopServing(), then refuses new calls and waits for those in progress. What is
  // left after `timeout` is cancelled; handlers must then return. Idempotent.
  void Drain(std::chrono::milliseconds timeout);

 private:
  static Result<std::unique_ptr<RpcServer>> Create(const Options& options, const Limits& limits);
  RpcServer() = default;

  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // gRPC wants one where it has no service but its own
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<os::UnixServer> control_socket_;  // null: none
  std::unique_ptr<GrpcPort> port_;                  // null: no TCP
  std::unique_ptr<RpcServer> health_;               // at Options::health_address; null: none
  Mutex mutex_;
  std::map<std::string, bool> serving_ LS_GUARDED_BY(mutex_);  // as last reported to watchers
};

}  // namespace lockstep::rpc

// A TCP port of a gRPC server, with an accept of our own: gRPC's is deaf for good once an accept has failed for want of
// descriptors, and whoever reaches a port can bring that about.
#pragma once

#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/os/unique_fd.h"
#include "common/telemetry/log_limit.h"

namespace lockstep::rpc {

// The last of a process's descriptors are for what it serves already: files of versions, lanes, engines. A connection
// that would get one of them is closed at once.
inline constexpr int kReservedDescriptors = 64;
// For a connection's first word, where gRPC would wait for two minutes.
inline constexpr int kHandshakeTimeoutMs = 10'000;

// Thread-safe. Connections that were handed over are the server's.
class TcpPort {
 public:
  // Listens on all addresses of "host:port" that this machine has; 0 lets the system choose the port. kBadData when it
  // is malformed, kUnavailable, naming it, when it cannot be listened on.
  static Result<std::unique_ptr<TcpPort>> Listen(const std::string& address);
  ~TcpPort();

  int bound_port() const { return bound_port_; }

  // The server that `builder` builds will serve what comes here, and ask it for `credentials`. REQUIRES to be called
  // once.
  void ServeBy(grpc::ServerBuilder& builder, std::shared_ptr<grpc::ServerCredentials> credentials);

  // Accepts from now on; those who came before have waited. Without descriptors they wait on. REQUIRES that the server
  // runs.
  void Start();
  // Nobody gets in any more. To be called before the server shuts down; idempotent.
  void Stop();

  // Has `turned` called by the thread that accepts, within a second or two; never once it has stopped.
  void Turn(std::function<void()> turned);

 private:
  explicit TcpPort(std::string address) : address_(std::move(address)) {}
  Status Open();
  void AcceptLoop();
  Status AcceptFrom(int listening);
  void LogFailure(const Status& status);
  void RunTurned();

  std::string address_;  // with the port that was bound
  int bound_port_ = 0;
  std::vector<os::UniqueFd> listening_;
  os::UniqueFd wake_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  telemetry::LogLimit log_limit_;
  std::mutex mutex_;  // guards the next
  std::function<void()> turned_;
  std::thread acceptor_;
};

}  // namespace lockstep::rpc

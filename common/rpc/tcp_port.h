// A TCP port with an accept of our own: gRPC's is deaf for good once an accept has failed for want of descriptors, and
// bounds neither connections nor what is said on one. gRPC serves what comes here, or whatever else is told to.
#pragma once

#include <grpcpp/server_builder.h>

#include <asio.hpp>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/net/networks.h"
#include "common/net/places.h"
#include "common/os/unique_fd.h"
#include "common/telemetry/log_limit.h"

namespace lockstep::rpc {

// The last of a process's descriptors are for what it serves already: files of versions, lanes, engines. A connection
// that would get one of them is closed at once.
inline constexpr int kReservedDescriptors = 64;
// For a connection's first word, where gRPC would wait for two minutes.
inline constexpr int kHandshakeTimeoutMs = 10'000;

// Has the server refuse what is compressed, and never unpack it: gRPC would unpack all of a message before it measures
// it, and a thousand times its size is nothing for zeros.
void RefuseCompressed(grpc::ServerBuilder& builder);

// What the peers of a port may take.
struct PortLimits {
  size_t connections = 512;  // half of them from one address; fewer where this process may have few descriptors
  size_t unanswered_bytes;   // that a peer may say before it gets a word back
  std::optional<net::Networks> from;  // where they are let in from; nothing: from anywhere
};

// Thread-safe.
class TcpPort {
 public:
  // Listens on all addresses of "host:port" that this machine has; 0 lets the system choose the port. kBadData when it
  // is malformed, kUnavailable, naming it, when it cannot be listened on.
  static Result<std::unique_ptr<TcpPort>> Listen(const std::string& address, PortLimits limits);
  // Ends connections that are left, once they have got what the server said, or in a second. REQUIRES that the server
  // has shut down.
  ~TcpPort();

  int bound_port() const { return bound_port_; }

  // Gets this end of each connection, on the port's thread and its executor. `listening` is the socket it came to.
  using Serve = std::function<void(asio::local::stream_protocol::socket connection, int listening)>;

  // What serves what comes here: either, once, before Start().
  void ServeBy(Serve serve) { serve_ = std::move(serve); }
  // The server that `builder` builds, which asks for `credentials`.
  void ServeBy(grpc::ServerBuilder& builder, std::shared_ptr<grpc::ServerCredentials> credentials);

  // Accepts from now on; peers that came before have waited. Without descriptors they wait on. REQUIRES that the server
  // runs.
  void Start();
  // No peer gets in any more, and those that are in stay. To be called before the server shuts down; idempotent.
  void Stop();

 private:
  TcpPort(std::string address, PortLimits limits);
  Status Open();
  asio::awaitable<void> AcceptLoop(asio::ip::tcp::acceptor& listening);
  Status AcceptFrom(int listening);
  Status LetIn(os::UniqueFd peer, int listening);
  void LogFailure(const Status& status);

  std::string address_;  // with the port that was bound
  const size_t unanswered_bytes_;
  const std::optional<net::Networks> from_;
  int bound_port_ = 0;
  Serve serve_;
  telemetry::LogLimit log_limit_;
  net::Places places_;
  asio::io_context context_{1};  // what follows runs on its one thread
  std::list<asio::ip::tcp::acceptor> listening_;
  std::promise<void> ended_;  // no thread listens, and all connections are over
  std::thread thread_;
};

}  // namespace lockstep::rpc

// A TCP port that gRPC serves. TLS ends here, in sockets of ours as for lanes, and a peer that may do nothing never
// reaches gRPC. What the peers of a port may have gRPC keep is bounded here, too (http2_guard.h).
#pragma once

#include <grpcpp/server_builder.h>

#include <asio.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/net/connection_slots.h"
#include "common/net/io_threads.h"
#include "common/net/networks.h"
#include "common/rpc/peer_certificate.h"
#include "common/rpc/relay.h"
#include "common/rpc/tcp_port.h"
#include "common/rpc/tls_copies.h"

namespace lockstep::rpc {

// For a connection's first word, where gRPC would wait for two minutes, and for its TLS handshake.
inline constexpr int kHandshakeTimeoutMs = 10'000;

// Has the server refuse what is compressed, and never unpack it: gRPC would unpack all of a message before it measures
// it, and a thousand times its size is nothing for zeros.
void RefuseCompressed(grpc::ServerBuilder& builder);

// Thread-safe.
class GrpcPort {
 public:
  struct Options {
    const char* option;  // this and `address` as of TcpPort::Listen()
    std::string address;
    size_t connections;       // half of them from one address; fewer where this process may have few descriptors
    size_t calls;             // of all connections, that gRPC has not answered
    size_t calls_of_one;      // connection
    size_t unanswered_bytes;  // that a peer may say before it gets an answer
    std::optional<net::Networks> from;  // where peers are let in from; nothing: from anywhere
    const TlsCopies* tls = nullptr;     // null: plaintext
    // Whether the peer with this certificate may do anything here; null: each with a certificate may.
    std::function<Status(const PeerCertificate&)> admit;
  };

  static Result<std::unique_ptr<GrpcPort>> Listen(Options options);
  // Ends connections that are left, once they have got what the server said, or in a second. REQUIRES that the server
  // has shut down.
  ~GrpcPort();

  int bound_port() const { return port_->bound_port(); }

  // Has the server that `builder` builds serve the connections. To be called once, before Start().
  void ServeBy(grpc::ServerBuilder& builder);
  // Accepts from now on. REQUIRES that the server runs.
  void Start();
  // Lets no further peer in; connected peers stay. To be called before the server shuts down; idempotent.
  void Stop();

 private:
  explicit GrpcPort(Options options);
  asio::awaitable<void> Serve(asio::ip::tcp::socket connection, int listening);
  asio::awaitable<Status> Shake(Relay& relay);
  void HandOver(Relay& relay, int listening);
  void LogFull();

  const Options options_;
  net::ConnectionSlots shaking_;  // until the handshake is over: strangers displace only strangers
  net::ConnectionSlots connection_slots_;
  Mutex mutex_;
  bool stopped_ LS_GUARDED_BY(mutex_) = false;
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> server_ LS_GUARDED_BY(mutex_);
  telemetry::LogLimit full_limit_;
  CallSlots slots_;
  net::IoThreads io_;  // one: relays and slots are used on it
  std::unique_ptr<TcpPort> port_;
};

}  // namespace lockstep::rpc

// LaneServer: answers block requests on TCP lanes (common/wire/FORMAT.md), one coroutine per lane.
//
// Full blocks are sent out of the slot that holds them, which is held for the length of one system call at a time; the
// rest of a block that the socket does not take is copied. So a receiver that does not read holds nothing up but its
// own lane. A lane that is stalled for too long, or silent without waiting for a version, is closed; its receiver
// comes back with a new ticket.
//
// A connection is unknown until it has shown a ticket. It has hello_timeout for that, and is one of few.
#pragma once

#include <chrono>
#include <memory>

#include "common/net/connection_slots.h"
#include "common/net/host_port.h"
#include "common/net/io_threads.h"
#include "common/net/networks.h"
#include "common/net/peer_stream.h"
#include "common/rpc/tcp_port.h"
#include "common/telemetry/log_limit.h"
#include "common/telemetry/timeline.h"
#include "trainer_agent/serve/pull_table.h"
#include "trainer_agent/serve/served_lane.h"

namespace lockstep::serve {

struct LaneServerOptions {
  net::HostPort address;
  bool encrypted = false;  // lanes are TLS, or none
  net::Networks plain;     // where none are: where peers are let in from
  size_t threads = 2;
  uint64_t bytes_per_s = 0;                         // of all lanes together; 0: no limit
  uint64_t receiver_bytes_per_s = 0;                // of the lanes of one receiver together; 0: no limit
  std::chrono::milliseconds hello_timeout{10'000};  // from the connection to the hello
  net::ConnectionSlots::Limits waiting;
  LaneTimeouts timeouts;
  telemetry::Timeline* timeline = nullptr;  // where spans go, when not null; outlives the server
};

class LaneServer {
 public:
  // Listens and serves at once. kUnavailable, naming the address, when it is in use. REQUIRES the table to outlive
  // this.
  static Result<std::unique_ptr<LaneServer>> Start(const LaneServerOptions& options, PullTable* pulls);
  // Closes every lane.
  ~LaneServer();

  int port() const { return port_->bound_port(); }

 private:
  LaneServer(LaneServerOptions options, PullTable* pulls);

  asio::awaitable<void> ServeLane(asio::ip::tcp::socket socket);
  asio::awaitable<Result<Pull::LaneLease>> LetIn(std::shared_ptr<net::PeerStream> stream,
                                                 const asio::ip::tcp::endpoint& peer);
  asio::awaitable<Result<Pull::LaneLease>> Welcome(net::PeerStream& stream);
  asio::awaitable<Status> ReadHello(net::PeerStream& stream, std::chrono::milliseconds timeout, wire::LaneHello& hello);
  asio::awaitable<Status> ReadEncryptedHello(net::PeerStream& stream, wire::LaneHello& hello);
  void LogRefusal(const Status& status, const std::string& peer);

  const LaneServerOptions options_;
  PullTable* const pulls_;
  LaneLimits limits_;
  net::ConnectionSlots waiting_;
  telemetry::LogLimit log_limit_;
  std::shared_ptr<const net::TlsContext> tls_;  // null: lanes are plain
  const std::shared_ptr<WakeupGate> gate_ = std::make_shared<WakeupGate>();
  net::IoThreads io_;  // its threads use the rest
  std::unique_ptr<rpc::TcpPort> port_;
};

}  // namespace lockstep::serve

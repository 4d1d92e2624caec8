// LaneServer: answers block requests on TCP lanes (common/wire/FORMAT.md), one coroutine per lane.
//
// A full block is copied out of its half before it is sent, so that a receiver that does not read holds nothing up but
// its own lane. A lane that is silent or stalled for too long is closed; its receiver comes back with a new ticket.
#pragma once

#include <chrono>
#include <memory>

#include "common/net/host_port.h"
#include "common/net/io_threads.h"
#include "common/net/lane_io.h"
#include "trainer_agent/serve/pull_table.h"

namespace lockstep {

struct LaneServerOptions {
  HostPort address;
  size_t threads = 2;
  std::chrono::milliseconds hello_timeout{10'000};
  std::chrono::milliseconds idle_timeout{120'000};  // between requests
  std::chrono::milliseconds send_timeout{60'000};   // for one buffer of frames
};

class LaneServer {
 public:
  // Listens and serves at once. kUnavailable, naming the address, when it is in use. REQUIRES the table to outlive
  // this.
  static Result<std::unique_ptr<LaneServer>> Start(const LaneServerOptions& options, PullTable* pulls);
  // Closes every lane.
  ~LaneServer() = default;

  uint16_t port() const { return port_; }

 private:
  LaneServer(LaneServerOptions options, PullTable* pulls);

  asio::awaitable<void> AcceptLoop(asio::ip::tcp::acceptor acceptor);
  asio::awaitable<void> ServeLane(asio::ip::tcp::socket socket);
  asio::awaitable<Result<Pull::LaneLease>> Welcome(asio::ip::tcp::socket& socket);

  const LaneServerOptions options_;
  PullTable* const pulls_;
  uint16_t port_ = 0;
  IoThreads io_;  // last: its threads use the rest
};

}  // namespace lockstep

// A port of plain HTTP that answers GET /metrics, for Prometheus, and nothing else.
//
// Bounded as the health port is (common/rpc/grpc_port.h): any program that reaches it may ask, and costs a connection
// for some seconds. Pages take a twentieth of a core at most, or one each five seconds: who asks before the next is due
// gets the last one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/net/connection_slots.h"
#include "common/net/io_threads.h"
#include "common/rpc/tcp_port.h"

namespace lockstep::metrics {

// Thread-safe.
class MetricsPort {
 public:
  // Makes a page, in Prometheus' text format. Called by the port's one thread.
  using Page = std::function<std::string()>;

  // Answers at once. kBadData, kUnavailable as rpc::TcpPort::Listen().
  static Result<std::unique_ptr<MetricsPort>> Create(const std::string& address, Page page);
  // `page` is not called any more.
  ~MetricsPort();

  int bound_port() const { return port_->bound_port(); }

 private:
  explicit MetricsPort(Page page);
  void Serve(asio::ip::tcp::socket connection);

  const Page page_;
  net::ConnectionSlots connection_slots_;
  net::IoThreads io_;
  std::unique_ptr<rpc::TcpPort> port_;
};

}  // namespace lockstep::metrics

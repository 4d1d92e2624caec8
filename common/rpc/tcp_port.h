// A TCP port that peers connect to: of lanes, of gRPC, of metrics. It accepts where gRPC would be deaf for good once an
// accept has failed for want of descriptors, and keeps descriptors for what is served already.
#pragma once

#include <asio.hpp>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/net/networks.h"
#include "common/os/unique_fd.h"
#include "common/telemetry/log_limit.h"

namespace lockstep::rpc {

// The last of a process's descriptors are for what it serves already: files of versions, lanes, engines. A connection
// that would get one of them is closed at once.
inline constexpr int kReservedDescriptors = 64;
bool IsReserved(const os::UniqueFd& descriptor);
Status NoDescriptors();    // why it was closed
size_t MostDescriptors();  // of this process

// Thread-safe. To be stopped before its context is.
class TcpPort {
 public:
  // Listens on all addresses of "host:port" that this machine has; 0 lets the system choose the port. Peers are let in
  // from `from`; nothing: from anywhere. `option`: of the command line, which errors name. kBadData when the address is
  // malformed, kUnavailable, naming it, when it cannot be listened on. REQUIRES `context` to outlive the port.
  static Result<std::unique_ptr<TcpPort>> Listen(asio::io_context& context, const char* option,
                                                 const std::string& address, std::optional<net::Networks> from = {});
  ~TcpPort() { Stop(); }

  int bound_port() const { return bound_port_; }
  const std::string& address() const { return address_; }  // with the port that was bound

  // Gets each connection, on the threads of the context; the executor of the socket is a strand. `listening` is the
  // socket that it came to.
  using Serve = std::function<void(asio::ip::tcp::socket connection, int listening)>;

  // Accepts from now on; peers that came before have waited. Without descriptors they wait on. REQUIRES that the
  // context runs, or will.
  void Start(Serve serve);
  // Lets no further peer in; connected peers stay. Idempotent. REQUIRES not to be called by the context's
  // thread.
  void Stop();

  // Says why a connection was closed: once a minute for each peer and reason. No peer: for want of descriptors.
  void LogRefusal(const Status& status, const std::string& peer = "");

 private:
  TcpPort(asio::io_context& context, std::string address, std::optional<net::Networks> from)
      : strand_(asio::make_strand(context)), address_(std::move(address)), from_(std::move(from)) {}
  Status Open();
  asio::awaitable<void> AcceptLoop(asio::ip::tcp::acceptor& listening);
  Status AcceptFrom(int listening);
  Status LetIn(os::UniqueFd peer, int listening);

  const asio::strand<asio::io_context::executor_type> strand_;  // what follows is used on it, once started
  std::string address_;
  const std::optional<net::Networks> from_;
  int bound_port_ = 0;
  Serve serve_;
  telemetry::LogLimit log_limit_;
  std::list<asio::ip::tcp::acceptor> listening_;
  std::vector<std::future<void>> loops_;  // one of each
};

}  // namespace lockstep::rpc

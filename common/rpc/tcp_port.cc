#include "common/rpc/tcp_port.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/text.h"
#include "common/net/host_port.h"
#include "common/net/lane_io.h"
#include "common/telemetry/log.h"

namespace lockstep::rpc {
namespace {

constexpr int kMostAttempts = 8;
constexpr std::chrono::milliseconds kPauseAfterFailure{100};

using asio::ip::tcp;

// Not valid when that cannot be; errno says why.
os::UniqueFd ListenOn(const tcp::endpoint& address) {
  os::UniqueFd socket(::socket(address.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  const int no = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.protocol() == tcp::v6()) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);  // connections have it from their port
  const bool listens = ::bind(socket.get(), address.data(), static_cast<socklen_t>(address.size())) == 0 &&
                       ::listen(socket.get(), SOMAXCONN) == 0;
  return listens ? std::move(socket) : os::UniqueFd();
}

Status NotListening(const std::string& address, int error_number) {
  const char* what = error_number == EADDRINUSE
                         ? "address already in use; end the process that has it, or give another "
                           "port (0: the system chooses a free one)"
                         : std::strerror(error_number);
  return {ErrorCode::kUnavailable, Cat("cannot listen on ", address, ": ", what)};
}

}  // namespace

size_t MostDescriptors() {
  rlimit limit{};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

bool IsReserved(const os::UniqueFd& descriptor) {
  // The system gives the lowest that is free: the number says how many are taken.
  return static_cast<size_t>(descriptor.get()) + kReservedDescriptors >= MostDescriptors();
}

Status NoDescriptors() {
  return {ErrorCode::kResourceExhausted,
          Cat("the last ", kReservedDescriptors,
              " descriptors are for what is served already; raise the limit on open files")};
}

Result<std::unique_ptr<TcpPort>> TcpPort::Listen(asio::io_context& context, const char* option,
                                                 const std::string& address, std::optional<net::Networks> from) {
  for (int attempt = 1;; ++attempt) {
    std::unique_ptr<TcpPort> port(new TcpPort(context, address, from));
    const Status status = port->Open();
    if (status.ok()) return port;
    // The port that the system chose on one address may be taken on another.
    if (port->bound_port_ == 0 || attempt == kMostAttempts) return status.WithContext(option);
  }
}

Status TcpPort::Open() {
  LS_ASSIGN_OR_RETURN(net::HostPort parsed, net::ParseHostPort(address_));
  const auto flags = tcp::resolver::passive | tcp::resolver::numeric_service;
  asio::error_code unknown;
  for (tcp::endpoint one : tcp::resolver(strand_).resolve(parsed.host, Cat(parsed.port), flags, unknown)) {
    // The same port on all, also when the system chose it.
    if (bound_port_ != 0) one.port(static_cast<uint16_t>(bound_port_));
    os::UniqueFd socket = ListenOn(one);
    if (!socket.valid() && errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) return NotListening(address_, errno);
    if (!socket.valid()) continue;
    listening_.emplace_back(strand_, one.protocol(), socket.Release());
    asio::error_code error;
    bound_port_ = listening_.back().local_endpoint(error).port();
    if (error) return NotListening(address_, error.value());
  }
  if (listening_.empty()) {
    return {ErrorCode::kUnavailable,
            Cat("cannot listen on ", address_, ": this machine has no such address; give one that it has")};
  }
  parsed.port = static_cast<uint16_t>(bound_port_);
  address_ = parsed.ToString();
  return OkStatus();
}

void TcpPort::Start(Serve serve) {
  serve_ = std::move(serve);
  for (asio::ip::tcp::acceptor& one : listening_) {
    loops_.push_back(asio::co_spawn(strand_, AcceptLoop(one), asio::use_future));
  }
}

void TcpPort::Stop() {
  if (loops_.empty()) return;
  asio::post(strand_, [this] {
    for (asio::ip::tcp::acceptor& one : listening_) one.close();
  });
  for (const std::future<void>& loop : loops_) loop.wait();
  loops_.clear();
}

asio::awaitable<void> TcpPort::AcceptLoop(asio::ip::tcp::acceptor& listening) {
  asio::steady_timer pause(strand_);
  asio::error_code failed;
  auto token = asio::redirect_error(asio::use_awaitable, failed);
  while (true) {
    co_await listening.async_wait(asio::socket_base::wait_read, token);
    if (!listening.is_open()) co_return;
    const Status accepted = AcceptFrom(listening.native_handle());
    if (accepted.ok()) continue;
    LogRefusal(accepted);
    // A peer that could not be accepted is still there, and would end the wait at once.
    pause.expires_after(kPauseAfterFailure);
    co_await pause.async_wait(token);
    if (!listening.is_open()) co_return;
  }
}

// OK also when no peer is there.
Status TcpPort::AcceptFrom(int listening) {
  os::UniqueFd fd(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) return LetIn(std::move(fd), listening);
  const bool nobody = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
  return nobody ? OkStatus() : ErrnoStatus(errno, Cat("accept on ", address_));
}

// OK also when it was closed, for want of descriptors or for where it comes from.
Status TcpPort::LetIn(os::UniqueFd peer, int listening) {
  if (IsReserved(peer)) {
    LogRefusal(NoDescriptors());
    return OkStatus();
  }
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  if (::getpeername(peer.get(), reinterpret_cast<sockaddr*>(&from), &size) != 0) return OkStatus();  // gone again
  asio::ip::tcp::endpoint address;
  std::memcpy(address.data(), &from, size);
  address.resize(size);
  if (from_ && !from_->Contain(address.address())) {
    const std::string host = address.address().to_string();
    LogRefusal({ErrorCode::kPermission, Cat(host, " is of no network that allow-insecure-network names")}, host);
    return OkStatus();
  }
  asio::ip::tcp::socket connection(asio::make_strand(strand_.get_inner_executor()));
  asio::error_code failed;
  connection.assign(address.protocol(), peer.get(), failed);
  if (failed) return net::NetStatus(failed, Cat("accept on ", address_));
  (void)peer.Release();
  serve_(std::move(connection), listening);
  return OkStatus();
}

void TcpPort::LogRefusal(const Status& status, const std::string& peer) {
  const uint64_t times = log_limit_.Count(Cat(peer, " ", status.message()));
  if (times == 0) return;
  telemetry::LogWarn("connection_refused", status, {{"address", address_}, {"peer", peer}, {"times", times}});
}

}  // namespace lockstep::rpc

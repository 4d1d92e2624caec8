#include "common/rpc/tcp_port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "common/base/text.h"
#include "common/net/host_port.h"
#include "common/telemetry/log.h"

namespace lockstep::rpc {
namespace {

constexpr int kMostAttempts = 8;
constexpr int kTurnIntervalMs = 1'000;
constexpr int kPauseAfterFailureMs = 100;
// A peer that acknowledges nothing for so long is gone.
constexpr unsigned kUnacknowledgedMs = 10'000;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses Resolve(const net::HostPort& address) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(address.host.c_str(), Cat(address.port).c_str(), &hints, &found);
  return {failed == 0 ? found : nullptr, &::freeaddrinfo};
}

void SetPort(sockaddr* address, int port) {
  const in_port_t raw = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET) reinterpret_cast<sockaddr_in*>(address)->sin_port = raw;
  if (address->sa_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(address)->sin6_port = raw;
}

int PortOf(int socket) {
  sockaddr_in6 own{};  // the port stands where that of IPv4 does
  socklen_t size = sizeof own;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) == 0 ? ntohs(own.sin6_port) : 0;
}

// Not valid when that cannot be; errno says why.
os::UniqueFd ListenOn(const addrinfo& address) {
  os::UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  const int no = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.ai_family == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  // Connections have these from their port.
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs, sizeof kUnacknowledgedMs);
  const bool listens =
      ::bind(socket.get(), address.ai_addr, address.ai_addrlen) == 0 && ::listen(socket.get(), SOMAXCONN) == 0;
  return listens ? std::move(socket) : os::UniqueFd();
}

bool IsReserved(int descriptor) {
  rlimit limit{};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  // The system gives the lowest that is free: the number says how many are taken.
  return static_cast<rlim_t>(descriptor) + kReservedDescriptors >= limit.rlim_cur;
}

}  // namespace

Result<std::unique_ptr<TcpPort>> TcpPort::Listen(const std::string& address) {
  for (int attempt = 1;; ++attempt) {
    std::unique_ptr<TcpPort> port(new TcpPort(address));
    const Status status = port->Open();
    if (status.ok()) return port;
    // The port that the system chose on one address may be taken on another.
    if (port->bound_port_ == 0 || attempt == kMostAttempts) return status;
  }
}

Status TcpPort::Open() {
  LS_ASSIGN_OR_RETURN(net::HostPort parsed, net::ParseHostPort(address_));
  wake_ = os::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return ErrnoStatus(errno, "make an eventfd");
  const Status taken{ErrorCode::kUnavailable,
                     Cat("cannot listen on ", address_, "; is the port in use, or the address not of this machine?")};
  const Addresses addresses = Resolve(parsed);
  for (addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    if (bound_port_ != 0) SetPort(one->ai_addr, bound_port_);  // the same on all, also when the system chose it
    os::UniqueFd socket = ListenOn(*one);
    if (!socket.valid() && errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) return taken;
    if (!socket.valid()) continue;
    bound_port_ = PortOf(socket.get());
    listening_.push_back(std::move(socket));
  }
  if (listening_.empty()) return taken;
  parsed.port = static_cast<uint16_t>(bound_port_);
  address_ = parsed.ToString();
  return OkStatus();
}

TcpPort::~TcpPort() {
  Stop();
}

void TcpPort::ServeBy(grpc::ServerBuilder& builder, std::shared_ptr<grpc::ServerCredentials> credentials) {
  using FromFd = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  server_ = builder.experimental().AddExternalConnectionAcceptor(FromFd::FROM_FD, std::move(credentials));
}

void TcpPort::Start() {
  acceptor_ = std::thread([this] { AcceptLoop(); });
}

void TcpPort::Stop() {
  ::eventfd_write(wake_.get(), 1);
  if (acceptor_.joinable()) acceptor_.join();
  listening_.clear();
}

void TcpPort::AcceptLoop() {
  std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
  for (const os::UniqueFd& socket : listening_) fds.push_back({socket.get(), POLLIN, 0});
  bool failed = false;
  while (true) {
    // Who could not be accepted is still there, and would end the wait at once.
    ::poll(fds.data(), failed ? 1 : fds.size(), failed ? kPauseAfterFailureMs : kTurnIntervalMs);
    if (fds[0].revents != 0) return;
    RunTurned();
    failed = false;
    for (const os::UniqueFd& socket : listening_) {
      const Status accepted = AcceptFrom(socket.get());
      if (accepted.ok()) continue;
      failed = true;
      LogFailure(accepted);
    }
  }
}

// OK also when nobody is there.
Status TcpPort::AcceptFrom(int listening) {
  os::UniqueFd fd(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    const bool nobody = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    return nobody ? OkStatus() : ErrnoStatus(errno, Cat("accept on ", address_));
  }
  if (IsReserved(fd.get())) {
    fd.Reset();
    LogFailure({ErrorCode::kResourceExhausted,
                Cat("a connection to ", address_, " was closed: the last ", kReservedDescriptors,
                    " descriptors are for what is served already; raise the limit on open files")});
    return OkStatus();
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listening;
  connection.fd = fd.Release();
  server_->HandleNewConnection(&connection);
  return OkStatus();
}

void TcpPort::LogFailure(const Status& status) {
  const uint64_t times = log_limit_.Count("");
  if (times > 0) telemetry::LogWarn("control_accept_failed", status, {{"address", address_}, {"times", times}});
}

void TcpPort::Turn(std::function<void()> turned) {
  std::lock_guard lock(mutex_);
  turned_ = std::move(turned);
}

void TcpPort::RunTurned() {
  std::function<void()> turned;
  {
    std::lock_guard lock(mutex_);
    turned.swap(turned_);
  }
  if (turned) turned();
}

}  // namespace lockstep::rpc

#include "common/net/burst.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

#include "common/net/lane_io.h"

namespace lockstep::net {
namespace {

using asio::ip::tcp;

msghdr MessageOf(std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return message;
}

Result<size_t> Outcome(ssize_t bytes, std::string_view what) {
  if (bytes >= 0) return static_cast<size_t>(bytes);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return size_t{0};
  return NetStatus({errno, asio::error::get_system_category()}, what);
}

void SetOption(tcp::socket& socket, int level, int name, int value) {
  (void)::setsockopt(socket.native_handle(), level, name, &value, sizeof value);  // only how soon depends on it
}

}  // namespace

Result<size_t> SendNow(tcp::socket& socket, std::span<const iovec> pieces) {
  const msghdr message = MessageOf(pieces);
  return Outcome(::sendmsg(socket.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL), "write to peer");
}

Result<size_t> ReceiveNow(tcp::socket& socket, std::span<const iovec> pieces) {
  msghdr message = MessageOf(pieces);
  const ssize_t bytes = ::recvmsg(socket.native_handle(), &message, MSG_DONTWAIT);
  if (bytes == 0) return Status(ErrorCode::kUnavailable, "read from peer: peer closed");
  return Outcome(bytes, "read from peer");
}

std::chrono::microseconds RoundTrip(tcp::socket& socket) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return std::chrono::microseconds(info.tcpi_rtt);
}

void SetLowWater(tcp::socket& socket, size_t bytes) {
  SetOption(socket, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes));
}

void OpenWindow(tcp::socket& socket, size_t bytes) {
  // A reader that wants to be woken for so many bytes gets room for them; SO_RCVBUF would end the kernel's own sizing,
  // and net.core.rmem_max bounds it.
  SetOption(socket, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes));
  SetOption(socket, SOL_SOCKET, SO_RCVLOWAT, 1);
}

void KeepAlive(tcp::socket& socket) {
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, 60);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, 15);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 120'000);  // with bytes on their way nothing is probed
}

}  // namespace lockstep::net

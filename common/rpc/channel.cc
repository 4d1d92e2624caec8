#include "common/rpc/channel.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/support/channel_arguments.h>

#include "common/net/host_port.h"
#include "common/rpc/rpc_server.h"

namespace lockstep::rpc {
namespace {

// A peer that is silent for so long is gone, before its first word as after it.
constexpr int kSilenceMs = 20'000;
constexpr int kPingAfterMs = 10'000;

// A socket's listener accepts at once, unless it hangs.
constexpr std::chrono::milliseconds kSocketTimeout{2'000};

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  // Despite its name the time that a connection may take to come up. A refused one is over at once, and tried again
  // after the backoff above.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kSilenceMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingAfterMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kSilenceMs - kPingAfterMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Backoff is per subchannel: a channel of its own does not wait for another's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const TlsOptions& tls) {
  return grpc::CreateCustomChannel(address, MakeChannelCredentials(tls), Arguments());
}

std::optional<asio::ip::address> AnswerAddress(const grpc::ClientContext& context) {
  // gRPC writes a URI, "ipv4:10.1.2.3:7700", "ipv6:%5Bfe80::1%25eth0%5D:7700".
  std::string text = context.peer();
  text.erase(0, text.find(':') + 1);
  for (const auto& [coded, meant] : {std::pair{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}}) {
    if (const size_t at = text.find(coded); at != std::string::npos) text.replace(at, 3, meant);
  }
  const Result<net::HostPort> peer = net::ParseHostPort(text);
  asio::error_code malformed;
  const asio::ip::address address = asio::ip::make_address(peer.ok() ? peer->host : "", malformed);
  if (malformed) return std::nullopt;
  return address;
}

Result<std::shared_ptr<grpc::Channel>> LastingChannel::Get() {
  std::lock_guard lock(mutex_);
  if (channel_ != nullptr && !(socket_.valid() && socket_.PeerGone())) return channel_;
  if (to_socket()) {
    LS_RETURN_IF_ERROR(Connect(address_.substr(kUnixScheme.size())));
  } else {
    channel_ = MakeChannel(address_, tls_);
  }
  return channel_;
}

Status LastingChannel::Connect(const std::string& path) {
  LS_ASSIGN_OR_RETURN(os::UnixConnection connection, os::UnixConnect(path, kSocketTimeout));
  LS_RETURN_IF_ERROR(os::CheckListener(connection, path));
  os::UniqueFd seen(::fcntl(connection.fd(), F_DUPFD_CLOEXEC, 0));
  if (!seen.valid()) return ErrnoStatus(errno, "keep a socket in sight");
  socket_ = os::UnixConnection(std::move(seen));
  channel_ = grpc::CreateCustomInsecureChannelFromFd(address_, connection.TakeFd().Release(), Arguments());
  return OkStatus();
}

void LastingChannel::Ended(const std::shared_ptr<grpc::Channel>& channel, const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return;
  std::lock_guard lock(mutex_);
  if (channel_ == channel) channel_ = nullptr;
}

}  // namespace lockstep::rpc

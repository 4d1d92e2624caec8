#include "common/rpc/channel.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/support/channel_arguments.h>

#include "common/base/text.h"
#include "common/net/host_port.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/status_mapping.h"

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

// What gRPC 1.51 says of a connection that did not come up, and what that means to who configures a daemon.
struct Trouble {
  enum Channels { kAll, kTls, kPlaintext };
  Channels of;
  std::string_view said;
  std::string_view means;
};

constexpr std::string_view kRefusesCertificate =
    "it closed the connection after the TLS handshake; its tls-ca may lack the CA of tls-cert here. Its log says why "
    "(connection_refused)";
constexpr std::string_view kWantsTls =
    "it closed the connection at the first word, as a daemon with TLS does; give tls-cert, tls-key and tls-ca";

// The first row that fits counts.
constexpr Trouble kTroubles[] = {
    {Trouble::kAll, "Connection refused", "connection refused; is it running, and is that its address?"},
    {Trouble::kAll, "Domain name not found", "DNS does not know this name"},
    {Trouble::kTls, "certificate verify failed",
     "its certificate is not of a CA in tls-ca, or has expired; compare the CA files of both sides"},
    {Trouble::kTls, "Hostname Verification Check failed",
     "its certificate is not for the name by which it is called; give the name that it is for as tls-server-name"},
    {Trouble::kTls, "Tls handshake failed",
     "it speaks no TLS 1.3; give that daemon tls-cert, tls-key and tls-ca, or none here"},
    {Trouble::kTls, "Endpoint read failed", kRefusesCertificate},
    {Trouble::kTls, "Socket closed", kRefusesCertificate},
    {Trouble::kTls, "Connection reset by peer", kRefusesCertificate},
    {Trouble::kPlaintext, "Socket closed", kWantsTls},
    {Trouble::kPlaintext, "Connection reset by peer", kWantsTls},
};

// The end of "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7700: Connection refused". Empty:
// `message` is of a connection that came up.
std::string_view WhyNotConnected(std::string_view message) {
  if (message.starts_with("DNS resolution failed")) return message;
  if (!message.starts_with("failed to connect")) return {};
  for (const std::string_view before : {"error: UNAUTHENTICATED: ", "last error: "}) {
    if (const size_t at = message.rfind(before); at != std::string_view::npos)
      return message.substr(at + before.size());
  }
  return message;
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const TlsOptions& tls) {
  DropGrpcLog();
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
  MutexLock lock(mutex_);
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
  MutexLock lock(mutex_);
  if (channel_ == channel) channel_ = nullptr;
}

Status LastingChannel::Explain(const grpc::Status& status) const {
  const Status failed = FromGrpc(status);
  if (failed.code() != ErrorCode::kUnavailable) return failed;
  const std::string_view why = WhyNotConnected(failed.message());
  if (why.empty()) return failed;
  for (const Trouble& each : kTroubles) {
    const bool fits = each.of == Trouble::kAll || (each.of == Trouble::kTls) == tls_.configured();
    if (fits && why.find(each.said) != std::string_view::npos) return {failed.code(), std::string(each.means)};
  }
  return {failed.code(), std::string(why)};
}

}  // namespace lockstep::rpc

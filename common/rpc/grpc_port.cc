#include "common/rpc/grpc_port.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "common/base/text.h"
#include "common/net/lane_io.h"
#include "common/telemetry/log.h"

namespace lockstep::rpc {
namespace {

constexpr std::chrono::seconds kLastWords{1};
constexpr std::chrono::milliseconds kLook{10};
constexpr std::chrono::milliseconds kHandshakeTimeout{kHandshakeTimeoutMs};
// A peer that acknowledges nothing, or takes nothing, for so long is gone.
constexpr unsigned kUnacknowledgedMs = 10'000;
// For a request, from its first byte to its last. All of ours are one message.
constexpr std::chrono::seconds kWholeIn{10};
// Of a connection: the peer's, and two between here and gRPC.
constexpr size_t kDescriptorsOfOne = 3;
// Of a process's descriptors a port's connections have this share at most.
constexpr size_t kShare = 4;

// HTTP/2 for a peer that is let in no further: SETTINGS, without which it would not listen, and GOAWAY with the reason.
std::string Farewell(std::string_view why) {
  constexpr std::string_view kSettings("\0\0\0\4\0\0\0\0\0", 9);
  constexpr std::string_view kGoAway("\7\0\0\0\0\0\0\0\0\0\0\0\xc", 13);  // no stream was served; INADEQUATE_SECURITY
  why = why.substr(0, 512);
  const size_t bytes = 8 + why.size();
  return Cat(kSettings, std::string{'\0', static_cast<char>(bytes >> 8), static_cast<char>(bytes)}, kGoAway, why);
}

// Lets the peer read why it is refused: a reset would take that with it.
asio::awaitable<void> Dismiss(net::PeerStream& peer, std::string_view why) {
  constexpr std::chrono::seconds kTime{1};
  const std::string farewell = Farewell(why);
  if (!(co_await peer.WriteAll(AsBytes(std::string_view(farewell)), kTime)).ok()) co_return;
  asio::error_code ignored;
  peer.socket().shutdown(asio::socket_base::shutdown_send, ignored);
  std::array<std::byte, 4096> rest;
  (void)co_await peer.ReadExact(rest, kTime);
}

net::Places::Limits PlacesOf(size_t connections) {
  const size_t most = std::max<size_t>(MostDescriptors() / kDescriptorsOfOne / kShare, 2);
  const size_t all = std::min(connections, most);
  return {.all = all, .per_address = (all + 1) / 2};
}

}  // namespace

void RefuseCompressed(grpc::ServerBuilder& builder) {
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

Result<std::unique_ptr<GrpcPort>> GrpcPort::Listen(Options options) {
  std::unique_ptr<GrpcPort> port(new GrpcPort(std::move(options)));
  LS_ASSIGN_OR_RETURN(port->port_, TcpPort::Listen(port->io_.context(), port->options_.address, port->options_.from));
  return port;
}

GrpcPort::GrpcPort(Options options)
    : options_(std::move(options)),
      shaking_(PlacesOf(options_.connections)),
      places_(PlacesOf(options_.connections)),
      slots_(io_.context(), options_.calls, [this] { LogFull(); }),
      io_(1, [](std::string_view what) {
        telemetry::LogError("port_exception", {ErrorCode::kInternal, std::string(what)});
      }) {}

GrpcPort::~GrpcPort() {
  Stop();
  const auto until = std::chrono::steady_clock::now() + kLastWords;
  while (places_.taken() > 0 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kLook);
  io_.Stop();
}

void GrpcPort::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  if (port_ != nullptr) port_->Stop();
}

void GrpcPort::ServeBy(grpc::ServerBuilder& builder) {
  using FromFd = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  server_ = builder.experimental().AddExternalConnectionAcceptor(FromFd::FROM_FD, grpc::InsecureServerCredentials());
}

void GrpcPort::Start() {
  port_->Start([this](asio::ip::tcp::socket connection, int listening) {
    const auto executor = connection.get_executor();
    net::Spawn(executor, Serve(std::move(connection), listening));
  });
}

asio::awaitable<void> GrpcPort::Serve(asio::ip::tcp::socket connection, int listening) {
  asio::error_code gone;
  const asio::ip::address address = connection.remote_endpoint(gone).address();
  if (gone) co_return;
  ::setsockopt(connection.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs, sizeof kUnacknowledgedMs);
  const Http2Guard::Limits limits{
      .calls = options_.calls_of_one, .unanswered_bytes = options_.unanswered_bytes, .whole_in = kWholeIn};
  const auto relay = std::make_shared<Relay>(std::move(connection), limits, &slots_);
  relay->refused = [this](const Status& status) { port_->LogRefusal(status); };
  const auto leave = [weak = std::weak_ptr(relay)] {
    if (const auto displaced = weak.lock()) displaced->End();
  };
  relay->place.emplace(shaking_.Enter(address, leave));
  if (const Status shaken = co_await Shake(*relay); !shaken.ok()) {
    // A peer that left was refused nothing.
    if (shaken.code() != ErrorCode::kUnavailable && shaken.code() != ErrorCode::kCancelled) {
      port_->LogRefusal({shaken.code(), Cat(address.to_string(), ": ", shaken.message())});
    }
    co_return;
  }
  if (options_.admit && relay->certified) {
    const Status admitted = options_.admit(relay->certified->certificate());
    if (!admitted.ok()) co_return co_await Dismiss(relay->peer, admitted.message());
  }
  relay->place.emplace(places_.Enter(address, leave));
  HandOver(*relay, listening);
  if (relay->server.is_open()) StartRelay(relay);
}

void GrpcPort::LogFull() {
  if (const uint64_t times = full_limit_.Count(""); times > 0) {
    telemetry::LogWarn("calls_delayed",
                       {ErrorCode::kResourceExhausted,
                        Cat("peers made ", options_.calls,
                            " calls that are not answered, or were given up in the last seconds; more wait")},
                       {{"address", port_->address()}, {"times", times}});
  }
}

// Encrypts the connection, where it is to be.
asio::awaitable<Status> GrpcPort::Shake(Relay& relay) {
  if (options_.tls == nullptr) co_return OkStatus();
  const auto context = options_.tls->context();
  if (context == nullptr) co_return Status(ErrorCode::kConfig, "its certificate and key cannot be used");
  Status status = co_await relay.peer.AcceptTls(context, nullptr, kHandshakeTimeout);
  if (status.ok()) relay.certified.emplace(ReadPeerCertificate(*relay.peer.tls()->certificate()));
  co_return status;
}

// Closes the connection without a word when there are no descriptors for it, or the server is about to shut down.
void GrpcPort::HandOver(Relay& relay, int listening) {
  int ends[2] = {-1, -1};
  const bool paired = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0;
  os::UniqueFd own(ends[0]);
  os::UniqueFd server(ends[1]);
  if (!paired || IsReserved(server)) return port_->LogRefusal(NoDescriptors());
  if (relay.certified) {
    if (const Status named = relay.certified->Name(own.get()); !named.ok()) return port_->LogRefusal(named);
  }
  std::lock_guard lock(mutex_);  // a server that has shut down would keep the descriptor
  if (stopped_) return;
  asio::error_code failed;
  relay.server.assign(asio::local::stream_protocol(), own.get(), failed);
  if (failed) return port_->LogRefusal(net::NetStatus(failed, "watch a connection"));
  (void)own.Release();
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.listener_fd = listening;
  parameters.fd = server.Release();
  server_->HandleNewConnection(&parameters);
}

}  // namespace lockstep::rpc

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

// A field of a header block, as it is (RFC 7541).
std::string Field(std::string_view name, std::string_view value) {
  constexpr size_t kPrefix = 127;
  std::string field = Cat(std::string(1, '\0'), std::string(1, static_cast<char>(name.size())), name);
  field += static_cast<char>(std::min(value.size(), kPrefix));
  if (value.size() >= kPrefix) {
    const size_t rest = value.size() - kPrefix;
    field += {static_cast<char>(rest | 0x80), static_cast<char>(rest >> 7)};
  }
  return Cat(field, value);
}

// HTTP/2: what gRPC would answer to a call on `stream` that is refused.
std::string Refusal(uint32_t stream, std::string_view why) {
  constexpr uint8_t kEndStreamAndHeaders = 5;
  const std::string block = Cat("\x88", Field("content-type", "application/grpc"),
                                Field("grpc-status", Cat(static_cast<int>(grpc::StatusCode::PERMISSION_DENIED))),
                                Field("grpc-message", why.substr(0, 1024)));
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(block.size() >> shift);
  frame += {static_cast<char>(Http2FrameHeader::kHeaders), static_cast<char>(kEndStreamAndHeaders)};
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return Cat(frame, block);
}

// Answers the peer's first call, so that who called reads why.
asio::awaitable<void> Dismiss(net::PeerStream& peer, std::string_view why) {
  constexpr std::chrono::seconds kTime{1};
  constexpr std::string_view kSettings("\0\0\0\4\0\0\0\0\0", 9);
  if (!(co_await peer.WriteAll(AsBytes(kSettings), kTime)).ok()) co_return;
  Http2FrameReader frames(kPrefaceBytes);
  std::array<std::byte, 4096> buffer;
  uint32_t stream = 0;
  while (stream == 0) {
    const Result<size_t> got = peer.ReceiveNow(std::array{iovec{buffer.data(), buffer.size()}});
    if (!got.ok()) co_return;
    ByteView said = ByteView(buffer).first(*got);
    while (const std::optional<Http2FrameHeader> frame = frames.Next(said)) {
      if (frame->type == Http2FrameHeader::kHeaders) stream = frame->stream;
    }
    if (*got == 0 && !(co_await peer.UntilReady(asio::socket_base::wait_read, kTime)).ok()) co_return;
  }
  const std::string refusal = Refusal(stream, why);
  if (!(co_await peer.WriteAll(AsBytes(std::string_view(refusal)), kTime)).ok()) co_return;
  asio::error_code ignored;
  peer.socket().shutdown(asio::socket_base::shutdown_send, ignored);
  (void)co_await peer.ReadExact(buffer, kTime);  // a reset would take the answer with it
}

net::ConnectionSlots::Limits ConnectionLimits(size_t connections) {
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
  LS_ASSIGN_OR_RETURN(port->port_, TcpPort::Listen(port->io_.context(), port->options_.option, port->options_.address,
                                                   port->options_.from));
  return port;
}

GrpcPort::GrpcPort(Options options)
    : options_(std::move(options)),
      shaking_(ConnectionLimits(options_.connections)),
      connection_slots_(ConnectionLimits(options_.connections)),
      slots_(io_.context(), options_.calls, [this] { LogFull(); }),
      io_(1, [](std::string_view what) {
        telemetry::LogError("port_exception", {ErrorCode::kInternal, std::string(what)});
      }) {}

GrpcPort::~GrpcPort() {
  Stop();
  const auto until = std::chrono::steady_clock::now() + kLastWords;
  while (connection_slots_.taken() > 0 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kLook);
  io_.Stop();
}

void GrpcPort::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  if (port_ != nullptr) port_->Stop();
}

void GrpcPort::ServeBy(grpc::ServerBuilder& builder) {
  using FromFd = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  MutexLock lock(mutex_);
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
  relay->refused = [this, peer = address.to_string()](const Status& status) { port_->LogRefusal(status, peer); };
  const auto leave = [weak = std::weak_ptr(relay)] {
    if (const auto displaced = weak.lock()) displaced->End();
  };
  relay->slot.emplace(shaking_.Enter(address, leave));
  if (const Status shaken = co_await Shake(*relay); !shaken.ok()) {
    // A peer that left was refused nothing.
    if (shaken.code() != ErrorCode::kUnavailable && shaken.code() != ErrorCode::kCancelled) {
      port_->LogRefusal(shaken, address.to_string());
    }
    co_return;
  }
  if (options_.admit && relay->certified) {
    const Status admitted = options_.admit(relay->certified->certificate());
    if (!admitted.ok()) co_return co_await Dismiss(relay->peer, admitted.message());
  }
  relay->slot.emplace(connection_slots_.Enter(address, leave));
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
  MutexLock lock(mutex_);  // a server that has shut down would keep the descriptor
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

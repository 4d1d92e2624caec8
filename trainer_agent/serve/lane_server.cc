#include "trainer_agent/serve/lane_server.h"

#include <algorithm>
#include <array>

#include "common/base/text.h"
#include "common/net/burst.h"
#include "common/net/lane_io.h"
#include "common/telemetry/log.h"
#include "common/wire/frame.h"
#include "common/wire/lane_identity.h"

namespace lockstep::serve {
namespace {

using asio::ip::tcp;
using std::chrono::milliseconds;

// How much more a refused peer may have sent, all the requests that it may have out, and how long that is read, before
// its connection is reset: a reset would take the refusal with it.
constexpr size_t kRefusedReadBytes = 4 << 10;
constexpr milliseconds kRefusedReadTimeout{1'000};

// Lets the peer read why it is refused.
asio::awaitable<void> Dismiss(net::PeerStream& stream) {
  asio::error_code ignored;
  stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  std::array<std::byte, kRefusedReadBytes> rest;
  (void)co_await stream.ReadExact(rest, kRefusedReadTimeout);
}

void LogLane(std::string_view event, const Pull::LaneLease& lane, const std::string& peer) {
  telemetry::Log(telemetry::LogLevel::kDebug, event,
                 {{"model", lane->run->model()},
                  {"receiver", lane->receiver},
                  {"pull", lane->id},
                  {"lane", lane.lane()},
                  {"peer", peer}});
}

}  // namespace

Result<std::unique_ptr<LaneServer>> LaneServer::Start(const LaneServerOptions& options, PullTable* pulls) {
  std::unique_ptr<LaneServer> server(new LaneServer(options, pulls));
  if (options.encrypted) {
    LS_ASSIGN_OR_RETURN(server->tls_, net::TlsContext::Create(net::TlsContext::Side::kAccepts));
  }
  std::optional<net::Networks> from;
  if (!options.encrypted) from = options.plain;
  LS_ASSIGN_OR_RETURN(server->port_, rpc::TcpPort::Listen(server->io_.context(), "--lane-listen",
                                                          options.address.ToString(), std::move(from)));
  server->port_->Start([self = server.get()](tcp::socket connection, int) {
    const auto strand = connection.get_executor();
    net::Spawn(strand, self->ServeLane(std::move(connection)));
  });
  return server;
}

LaneServer::LaneServer(LaneServerOptions options, PullTable* pulls)
    : options_(std::move(options)),
      pulls_(pulls),
      limits_(options_.bytes_per_s, options_.receiver_bytes_per_s),
      waiting_(options_.waiting),
      io_(options_.threads, [](std::string_view what) {
        telemetry::LogError("lane_exception", {ErrorCode::kInternal, std::string(what)});
      }) {}

LaneServer::~LaneServer() {
  if (port_ != nullptr) port_->Stop();
  gate_->Close();
}

// At most one line a minute for each peer address.
void LaneServer::LogRefusal(const Status& status, const std::string& peer) {
  const uint64_t times = log_limit_.Count(peer);
  if (times > 0) telemetry::LogWarn("lane_refused", status, {{"peer", peer}, {"times", times}});
}

asio::awaitable<Status> LaneServer::ReadHello(net::PeerStream& stream, milliseconds timeout, wire::LaneHello& hello) {
  Status status = co_await stream.ReadExact(std::as_writable_bytes(std::span(&hello, 1)), timeout);
  co_return status.ok() ? wire::CheckHello(hello) : status;
}

// The ticket is the one that the handshake was made with.
asio::awaitable<Status> LaneServer::ReadEncryptedHello(net::PeerStream& stream, wire::LaneHello& hello) {
  const auto deadline = std::chrono::steady_clock::now() + options_.hello_timeout;
  uint64_t pull_id = 0;
  Ticket ticket;
  const auto find = [&](ByteView name) -> std::optional<net::TlsSecret> {
    const auto identity = wire::ReadIdentity(name);
    const auto found = identity ? pulls_->FindTicket(*identity) : std::nullopt;
    if (!found) return std::nullopt;
    pull_id = identity->pull_id;
    ticket = *found;
    return found->bytes;
  };
  Status status = co_await stream.AcceptTls(tls_, find, options_.hello_timeout);
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
  if (status.ok()) status = co_await ReadHello(stream, std::max(left, milliseconds(0)), hello);
  if (status.ok() && (hello.pull_id != pull_id || !hello.ticket.IsZero())) {
    status = {ErrorCode::kProtocol, "the hello of an encrypted lane names its pull, and no ticket"};
  }
  hello.ticket = ticket;
  co_return status;
}

asio::awaitable<Result<Pull::LaneLease>> LaneServer::Welcome(net::PeerStream& stream) {
  wire::LaneHello hello;
  Status status;
  if (tls_ == nullptr) {
    status = co_await ReadHello(stream, options_.hello_timeout, hello);
  } else {
    status = co_await ReadEncryptedHello(stream, hello);
  }
  if (!status.ok()) co_return status;
  Result<Pull::LaneLease> pull = pulls_->Admit(hello.pull_id, hello.ticket);
  wire::LaneWelcome welcome{.code = static_cast<uint32_t>(pull.status().code())};
  wire::Seal(welcome);
  status = co_await stream.WriteAll(AsBytes(welcome), options_.hello_timeout);
  if (!status.ok()) co_return status;
  if (!pull.ok()) co_await Dismiss(stream);
  co_return pull;
}

asio::awaitable<Result<Pull::LaneLease>> LaneServer::LetIn(std::shared_ptr<net::PeerStream> stream,
                                                           const tcp::endpoint& peer) {
  const auto leave = [weak = std::weak_ptr(stream)] {
    const auto still_there = weak.lock();
    if (still_there == nullptr) return;
    asio::post(still_there->socket().get_executor(), [still_there] {
      asio::error_code ignored;
      still_there->socket().close(ignored);
    });
  };
  const net::ConnectionSlots::Slot slot = waiting_.Enter(peer.address(), leave);
  Result<Pull::LaneLease> pull = co_await Welcome(*stream);
  if (pull.ok() || !slot.lost()) co_return pull;
  co_return Status(ErrorCode::kResourceExhausted, "too many connections have not shown a ticket");
}

asio::awaitable<void> LaneServer::ServeLane(tcp::socket socket) {
  asio::error_code ignored;
  const auto peer = socket.remote_endpoint(ignored);
  const std::string peer_name = Cat(peer.address().to_string(), ":", peer.port());
  socket.set_option(tcp::no_delay(true), ignored);
  net::KeepAlive(socket);
  const auto stream = std::make_shared<net::PeerStream>(std::move(socket));
  const Result<Pull::LaneLease> pull = co_await LetIn(stream, peer);
  if (!pull.ok()) {
    // A peer that left was refused nothing: a lane that others were faster than may end before its first word.
    if (pull.status().code() != ErrorCode::kUnavailable) LogRefusal(pull.status(), peer.address().to_string());
    co_return;
  }
  LogLane("lane_admitted", *pull, peer_name);
  ServeSpan span(options_.timeline, **pull, pull->lane());
  ServedLane lane(*stream, options_.timeouts, **pull, limits_.PaceOf({(*pull)->owner, (*pull)->receiver}), gate_, span);
  const Status status = co_await lane.Run();
  if (status.ok()) {
    LogLane("lane_ended", *pull, peer_name);
    co_return;
  }
  telemetry::LogWarn("lane_failed", status,
                     {{"peer", peer_name}, {"model", (*pull)->run->model()}, {"receiver", (*pull)->receiver}});
}

}  // namespace lockstep::serve

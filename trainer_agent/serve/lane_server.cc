#include "trainer_agent/serve/lane_server.h"

#include "common/base/text.h"
#include "common/net/burst.h"
#include "common/telemetry/log.h"
#include "common/wire/frame.h"

namespace lockstep::serve {
namespace {

using asio::ip::tcp;

// How much more a refused peer may have sent, and how long that is read, before its connection is reset: a reset would
// take the refusal with it.
constexpr size_t kRefusedReadBytes = 64 << 10;
constexpr std::chrono::milliseconds kRefusedReadTimeout{1'000};

// Lets the peer read why it is refused.
asio::awaitable<void> Dismiss(tcp::socket& socket) {
  asio::error_code ignored;
  socket.shutdown(tcp::socket::shutdown_send, ignored);
  Bytes rest(kRefusedReadBytes);
  (void)co_await net::ReadExact(socket, rest, kRefusedReadTimeout);
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
  LS_ASSIGN_OR_RETURN(tcp::acceptor acceptor, net::Listen(server->io_.context(), options.address));
  server->port_ = acceptor.local_endpoint().port();
  net::Spawn(server->io_.context().get_executor(), server->AcceptLoop(std::move(acceptor)));
  return server;
}

LaneServer::LaneServer(LaneServerOptions options, PullTable* pulls)
    : options_(std::move(options)),
      pulls_(pulls),
      limits_(options_.bytes_per_s, options_.receiver_bytes_per_s),
      io_(options_.threads, [](std::string_view what) {
        telemetry::LogError("lane_exception", {ErrorCode::kInternal, std::string(what)});
      }) {}

LaneServer::~LaneServer() {
  gate_->Close();
}

asio::awaitable<void> LaneServer::AcceptLoop(tcp::acceptor acceptor) {
  while (true) {
    tcp::socket socket(asio::make_strand(io_.context()));
    asio::error_code error;
    co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted) co_return;
    if (error) {
      // Out of descriptors, mostly: the pause lets lanes end.
      telemetry::LogWarn("lane_accept_failed", net::NetStatus(error, "accepting a lane"));
      asio::steady_timer pause(io_.context(), std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::use_awaitable);
      continue;
    }
    const auto strand = socket.get_executor();
    net::Spawn(strand, ServeLane(std::move(socket)));
  }
}

asio::awaitable<Result<Pull::LaneLease>> LaneServer::Welcome(tcp::socket& socket) {
  wire::LaneHello hello;
  Status status = co_await net::ReadExact(socket, std::as_writable_bytes(std::span(&hello, 1)), options_.hello_timeout);
  if (status.ok()) status = wire::CheckHello(hello);
  if (!status.ok()) co_return status;
  Result<Pull::LaneLease> pull = pulls_->Admit(hello.pull_id, hello.ticket);
  wire::LaneWelcome welcome{.code = static_cast<uint32_t>(pull.status().code())};
  wire::Seal(welcome);
  status = co_await net::WriteAll(socket, AsBytes(welcome), options_.timeouts.send);
  if (!status.ok()) co_return status;
  if (!pull.ok()) co_await Dismiss(socket);
  co_return pull;
}

asio::awaitable<void> LaneServer::ServeLane(tcp::socket socket) {
  asio::error_code ignored;
  const auto peer = socket.remote_endpoint(ignored);
  const std::string peer_name = Cat(peer.address().to_string(), ":", peer.port());
  socket.set_option(tcp::no_delay(true), ignored);
  net::KeepAlive(socket);
  const Result<Pull::LaneLease> pull = co_await Welcome(socket);
  if (!pull.ok()) {
    telemetry::LogWarn("lane_refused", pull.status(), {{"peer", peer_name}});
    co_return;
  }
  LogLane("lane_admitted", *pull, peer_name);
  ServeSpan span(options_.timeline, **pull, pull->lane());
  ServedLane lane(socket, options_.timeouts, **pull, limits_.PaceOf((*pull)->receiver), gate_, span);
  const Status status = co_await lane.Run();
  if (status.ok()) {
    LogLane("lane_ended", *pull, peer_name);
    co_return;
  }
  telemetry::LogWarn("lane_failed", status,
                     {{"peer", peer_name}, {"model", (*pull)->run->model()}, {"receiver", (*pull)->receiver}});
}

}  // namespace lockstep::serve

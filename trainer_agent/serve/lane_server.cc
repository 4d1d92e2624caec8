#include "trainer_agent/serve/lane_server.h"

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/wire/frame.h"
#include "trainer_agent/serve/lane_writer.h"

namespace lockstep {
namespace {

using asio::ip::tcp;

// One admitted lane: reads requests, writes their frames.
class Lane {
 public:
  Lane(tcp::socket& socket, const LaneServerOptions& options, Pull& pull)
      : socket_(socket), options_(options), pull_(pull), writer_(socket, options.send_timeout) {}

  // Until the peer closes (OK) or the lane fails.
  asio::awaitable<Status> Run() {
    while (true) {
      BlockRequest request;
      Status status =
          co_await ReadExact(socket_, std::as_writable_bytes(std::span(&request, 1)), options_.idle_timeout);
      if (status.code() == ErrorCode::kUnavailable) co_return OkStatus();
      if (status.ok()) status = CheckRequest(request, pull_.run->layout().block_count());
      if (status.ok()) status = co_await Answer(request);
      if (!status.ok()) co_return status;
    }
  }

 private:
  asio::awaitable<Status> Answer(const BlockRequest& request) {
    sent_ = 0;
    refusal_ = OkStatus();
    Status status;
    if (request.kind == static_cast<uint8_t>(RequestKind::kFull)) {
      status = co_await SendFull(request);
    } else {
      status = co_await SendDelta(request);
    }
    if (!status.ok()) co_return status;
    if (refusal_.ok()) {
      status = co_await writer_.AddEnd(request.request_id, sent_);
    } else {
      status = co_await writer_.AddError(request.request_id, refusal_);
    }
    if (status.ok()) status = co_await writer_.Flush();
    co_return status;
  }

  asio::awaitable<Status> SendFull(const BlockRequest& request) {
    ServedRun& run = *pull_.run;
    const bool exact = request.exact_version != 0;
    const Version wanted = exact ? request.exact_version : pull_.target;
    for (uint32_t i = 0; i < request.block_count; ++i) {
      const BlockIndex block = request.first_block + i;
      const auto bytes = static_cast<uint32_t>(run.layout().block_range(block).bytes);
      LaneWriter::Room room = co_await writer_.Reserve(bytes);
      if (!room.status.ok()) co_return room.status;
      const Result<ServedRun::BlockInfo> info = run.ReadBlock(wanted, exact, block, room.payload);
      if (!info.ok()) {
        refusal_ = info.status();
        co_return OkStatus();
      }
      writer_.Commit({.type = static_cast<uint8_t>(FrameType::kBlock),
                      .codec = static_cast<uint8_t>(Codec::kRaw),
                      .request_id = request.request_id,
                      .block = block,
                      .version = info->version,
                      .block_hash = info->hash,
                      .payload_hash = info->hash,
                      .payload_bytes = bytes});
      ++sent_;
      pull_.Touch();
    }
    co_return OkStatus();
  }

  asio::awaitable<Status> SendDelta(const BlockRequest& request) {
    const std::shared_ptr<const Payload> payload = pull_.FindPayload(request.payload_id);
    if (payload == nullptr) {
      refusal_ = {ErrorCode::kNotFound, Cat("payload ", request.payload_id, " is not of this pull")};
      co_return OkStatus();
    }
    const auto entries = payload->entries();
    auto entry = std::lower_bound(entries.begin(), entries.end(), request.first_block,
                                  [](const PayloadEntry& e, BlockIndex block) { return e.block < block; });
    for (; entry != entries.end() && entry->block - request.first_block < request.block_count; ++entry) {
      LaneWriter::Room room = co_await writer_.Reserve(entry->bytes);
      if (!room.status.ok()) co_return room.status;
      std::memcpy(room.payload.data(), payload->data(*entry).data(), entry->bytes);
      writer_.Commit({.type = static_cast<uint8_t>(FrameType::kBlock),
                      .codec = entry->codec,
                      .request_id = request.request_id,
                      .block = entry->block,
                      .version = payload->header().target,
                      .base_version = payload->header().base,
                      .block_hash = entry->target_hash,
                      .payload_hash = entry->data_hash,
                      .payload_bytes = entry->bytes,
                      .changes = entry->changes,
                      .payload_id = request.payload_id});
      ++sent_;
      pull_.Touch();
    }
    co_return OkStatus();
  }

  tcp::socket& socket_;
  const LaneServerOptions& options_;
  Pull& pull_;
  LaneWriter writer_;
  uint32_t sent_ = 0;
  Status refusal_;  // why the request in hand cannot be answered in full
};

}  // namespace

Result<std::unique_ptr<LaneServer>> LaneServer::Start(const LaneServerOptions& options, PullTable* pulls) {
  std::unique_ptr<LaneServer> server(new LaneServer(options, pulls));
  LS_ASSIGN_OR_RETURN(tcp::acceptor acceptor, Listen(server->io_.context(), options.address));
  server->port_ = acceptor.local_endpoint().port();
  Spawn(server->io_.context().get_executor(), server->AcceptLoop(std::move(acceptor)));
  return server;
}

LaneServer::LaneServer(LaneServerOptions options, PullTable* pulls)
    : options_(std::move(options)), pulls_(pulls), io_(options_.threads, [](std::string_view what) {
        LogError("lane_exception", {ErrorCode::kInternal, std::string(what)});
      }) {}

asio::awaitable<void> LaneServer::AcceptLoop(tcp::acceptor acceptor) {
  while (true) {
    tcp::socket socket(asio::make_strand(io_.context()));
    asio::error_code error;
    co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted) co_return;
    if (error) {
      // Out of descriptors, mostly: the pause lets lanes end.
      LogWarn("lane_accept_failed", NetStatus(error, "accepting a lane"));
      asio::steady_timer pause(io_.context(), std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::use_awaitable);
      continue;
    }
    const auto strand = socket.get_executor();
    Spawn(strand, ServeLane(std::move(socket)));
  }
}

asio::awaitable<Result<Pull::LaneLease>> LaneServer::Welcome(tcp::socket& socket) {
  LaneHello hello;
  Status status = co_await ReadExact(socket, std::as_writable_bytes(std::span(&hello, 1)), options_.hello_timeout);
  if (status.ok()) status = CheckHello(hello);
  if (!status.ok()) co_return status;
  Result<Pull::LaneLease> pull = pulls_->Admit(hello.pull_id, hello.ticket);
  LaneWelcome welcome{.code = static_cast<uint32_t>(pull.status().code())};
  Seal(welcome);
  status = co_await WriteAll(socket, AsBytes(welcome), options_.send_timeout);
  if (!status.ok()) co_return status;
  co_return pull;
}

asio::awaitable<void> LaneServer::ServeLane(tcp::socket socket) {
  asio::error_code ignored;
  const auto peer = socket.remote_endpoint(ignored);
  const std::string peer_name = Cat(peer.address().to_string(), ":", peer.port());
  socket.set_option(tcp::no_delay(true), ignored);
  const Result<Pull::LaneLease> pull = co_await Welcome(socket);
  if (!pull.ok()) {
    LogWarn("lane_refused", pull.status(), {{"peer", peer_name}});
    co_return;
  }
  Lane lane(socket, options_, **pull);
  const Status status = co_await lane.Run();
  if (status.ok()) co_return;
  LogWarn("lane_ended", status,
          {{"peer", peer_name}, {"model", (*pull)->run->model()}, {"receiver", (*pull)->receiver}});
}

}  // namespace lockstep

#include "trainer_agent/serve/served_lane.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep {
namespace {

// A subscription's lanes are idle for as long as the trainer is; keepalive tells when the peer is gone.
constexpr std::chrono::hours kLiveIdle{24 * 365};

}  // namespace

ServedLane::ServedLane(asio::ip::tcp::socket& socket, const LaneTimeouts& timeouts, Pull& pull, LanePace pace,
                       std::shared_ptr<BellGate> gate, ServeSpan& span)
    : socket_(socket),
      timeouts_(timeouts),
      pull_(pull),
      pace_(std::move(pace)),
      span_(span),
      writer_(socket, timeouts.send),
      bell_(std::make_shared<Bell>(socket.get_executor(), std::move(gate))) {}

asio::awaitable<Status> ServedLane::Run() {
  const std::chrono::milliseconds idle = pull_.live() ? kLiveIdle : timeouts_.idle;
  while (true) {
    BlockRequest request;
    Status status = co_await ReadExact(socket_, std::as_writable_bytes(std::span(&request, 1)), idle);
    if (status.code() == ErrorCode::kUnavailable || pull_.closed()) co_return OkStatus();
    if (status.ok()) status = CheckRequest(request, pull_.run->layout().block_count());
    if (status.ok() && !pull_.live()) span_.Begin();
    if (status.ok()) status = co_await Answer(request);
    // Who follows leaves when it likes, and its connection may break any hour.
    if (pull_.live() && status.code() == ErrorCode::kUnavailable) co_return OkStatus();
    if (!status.ok()) co_return status;
  }
}

asio::awaitable<Status> ServedLane::Answer(const BlockRequest& request) {
  sent_ = 0;
  end_sent_ = false;
  live_target_ = 0;
  refusal_ = OkStatus();
  Status status;
  const bool live = static_cast<RequestKind>(request.kind) == RequestKind::kLive;
  if (live != pull_.live()) {
    refusal_ = {ErrorCode::kState,
                "lanes of OpenLive answer live requests and nothing else; those of a pull no live ones"};
    writer_.AddError(request.request_id, refusal_);
    co_return co_await FlushPaced();
  }
  switch (static_cast<RequestKind>(request.kind)) {
    case RequestKind::kFull:
      status = co_await SendFull(request);
      break;
    case RequestKind::kDelta:
      status = co_await SendDelta(request);
      break;
    case RequestKind::kLive:
      status = co_await SendLive(request);
      break;
  }
  if (!status.ok()) co_return status;
  if (!refusal_.ok()) {
    writer_.AddError(request.request_id, refusal_);
  } else if (!end_sent_) {
    writer_.AddEnd(request.request_id, sent_, live_target_);
  }
  status = co_await FlushPaced();
  if (live_target_ != 0) span_.End(live_target_);
  co_return status;
}

asio::awaitable<Status> ServedLane::SendFull(const BlockRequest& request) {
  const uint32_t at_once = std::max<uint32_t>(1, LaneWriter::kBurstBytes / pull_.run->layout().block_bytes());
  while (sent_ < request.block_count) {
    const uint32_t count = std::min(at_once, request.block_count - sent_);
    // First, so that no half is held by a lane that waits for its turn.
    co_await WaitForPace(uint64_t{count} * pull_.run->layout().block_bytes());
    const Result<uint32_t> begun = SendBlocks(request, request.first_block + sent_, count);
    if (!begun.ok()) co_return begun.status();
    if (!refusal_.ok()) co_return OkStatus();
    Status status;
    if (*begun == 0) {
      status = co_await UntilReady(socket_, asio::socket_base::wait_write, timeouts_.send);
    } else {
      sent_ += *begun;
      pull_.Touch();
      status = co_await writer_.Flush();
    }
    if (!status.ok()) co_return status;
  }
  co_return OkStatus();
}

// Sends as many of the blocks as the socket takes, from the half that holds them. Answers how many, which is 0 too when
// the request is refused.
Result<uint32_t> ServedLane::SendBlocks(const BlockRequest& request, BlockIndex first, uint32_t count) {
  const ModelLayout& layout = pull_.run->layout();
  const bool exact = request.exact_version != 0;
  Result<uint32_t> begun = 0u;
  const auto send = [&](const Manifest& manifest, ByteView bytes) {
    const size_t total = bytes.size();
    for (BlockIndex block = first; block < first + count; ++block) {
      const size_t block_bytes = layout.block_range(block).bytes;
      const uint64_t hash = manifest.block_hashes[block];
      writer_.Add({.type = static_cast<uint8_t>(FrameType::kBlock),
                   .codec = static_cast<uint8_t>(Codec::kRaw),
                   .request_id = request.request_id,
                   .block = block,
                   .version = manifest.held.version,
                   .block_hash = hash,
                   .payload_hash = hash,
                   .payload_bytes = static_cast<uint32_t>(block_bytes)},
                  bytes.first(block_bytes));
      bytes = bytes.subspan(block_bytes);
    }
    const bool last = first + count == request.first_block + request.block_count;
    if (last) writer_.AddEnd(request.request_id, request.block_count);
    begun = writer_.SendLent();
    if (!begun.ok()) return;
    end_sent_ = *begun > count;
    begun = std::min(*begun, count);
    Sent(total * *begun / count);
  };
  refusal_ = pull_.run->UseBlocks(exact ? request.exact_version : pull_.target, exact, first, count, send);
  return begun;
}

asio::awaitable<Status> ServedLane::SendDelta(const BlockRequest& request) {
  const std::shared_ptr<const Payload> payload = pull_.FindPayload(request.payload_id);
  if (payload == nullptr) {
    refusal_ = {ErrorCode::kNotFound, Cat("payload ", request.payload_id, " is not of this pull")};
    co_return OkStatus();
  }
  const auto entries = payload->entries();
  auto entry = std::lower_bound(entries.begin(), entries.end(), request.first_block,
                                [](const PayloadEntry& e, BlockIndex block) { return e.block < block; });
  for (; entry != entries.end() && entry->block - request.first_block < request.block_count; ++entry) {
    writer_.Add({.type = static_cast<uint8_t>(FrameType::kBlock),
                 .codec = entry->codec,
                 .request_id = request.request_id,
                 .block = entry->block,
                 .version = payload->header().target,
                 .base_version = payload->header().base,
                 .block_hash = entry->target_hash,
                 .payload_hash = entry->data_hash,
                 .payload_bytes = entry->bytes,
                 .changes = entry->changes,
                 .payload_id = request.payload_id},
                payload->data(*entry));
    ++sent_;
    if (!writer_.full()) continue;
    if (Status status = co_await FlushPaced(); !status.ok()) co_return status;
  }
  // While the payload is held: what was not sent yet lies in it.
  co_return co_await FlushPaced();
}

asio::awaitable<Status> ServedLane::FlushPaced() {
  const size_t bytes = writer_.bytes();
  if (bytes == 0) co_return OkStatus();
  co_await WaitForPace(bytes);
  Sent(bytes);
  pull_.Touch();
  co_return co_await writer_.Flush();
}

void ServedLane::Sent(uint64_t bytes) {
  pace_.Sent(bytes);
  span_.Sent(bytes);
}

asio::awaitable<void> ServedLane::WaitForPace(uint64_t bytes) {
  const auto wait = pace_.Book(bytes);
  if (wait.count() == 0) co_return;
  asio::steady_timer timer(socket_.get_executor(), wait);
  asio::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

}  // namespace lockstep

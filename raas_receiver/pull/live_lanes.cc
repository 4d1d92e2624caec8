#include "raas_receiver/pull/live_lanes.h"

#include <asio/experimental/as_tuple.hpp>

#include "common/base/text.h"
#include "common/net/burst.h"
#include "common/net/lane_io.h"
#include "common/wire/frame.h"
#include "raas_receiver/pull/lane_entry.h"
#include "raas_receiver/pull/live_lane.h"

namespace lockstep {
namespace {

constexpr auto kAwait = asio::experimental::as_tuple(asio::use_awaitable);

}  // namespace

LiveLanes::Lane::Lane(IoThreads& io, std::shared_ptr<const LiveOptions> options, std::shared_ptr<LiveBasket> basket,
                      uint32_t share)
    : options_(std::move(options)),
      basket_(std::move(basket)),
      share_(share),
      strand_(asio::make_strand(io.context())),
      socket_(strand_),
      wake_(strand_) {}

void LiveLanes::Lane::Start() {
  Spawn(strand_, Run());
}

void LiveLanes::Lane::Wake() {
  asio::post(strand_, [self = shared_from_this()] {
    self->woken_ = true;
    self->wake_.cancel();
  });
}

void LiveLanes::Lane::Stop() {
  asio::post(strand_, [self = shared_from_this()] {
    self->stopped_ = true;
    self->wake_.cancel();
    asio::error_code ignored;
    self->socket_.close(ignored);
  });
}

asio::awaitable<void> LiveLanes::Lane::Run() {
  const auto self = shared_from_this();
  Status status = co_await Open();
  if (status.ok()) status = co_await Serve();
  asio::error_code ignored;
  socket_.close(ignored);
  const std::string where =
      Cat("live lane ", share_, " of pull ", options_->pull_id, " to ", options_->agent.ToString());
  stopped_ = true;
  basket_->Leave(status.ok() ? Status(ErrorCode::kCancelled, Cat(where, ": closed")) : status.WithContext(where));
}

asio::awaitable<Status> LiveLanes::Lane::Open() {
  if (Status status = co_await Connect(socket_, options_->agent, options_->connect_timeout); !status.ok())
    co_return status;
  if (stopped_) co_return Status(ErrorCode::kCancelled, "told to stop");
  KeepAlive(socket_);
  const Bytes hello = HelloOf({options_->pull_id, options_->tickets[share_], share_});
  Status status = co_await WriteAll(socket_, hello, options_->connect_timeout);
  if (status.ok()) status = co_await ReadWelcome(socket_, options_->connect_timeout);
  reader_.emplace(socket_);
  co_return status;
}

asio::awaitable<Status> LiveLanes::Lane::Serve() {
  uint64_t answered = 0;
  while (!stopped_) {
    const auto [question, base] = basket_->question();
    if (question == answered) {
      if (!woken_) {
        wake_.expires_at(asio::steady_timer::time_point::max());
        co_await wake_.async_wait(kAwait);
      }
      woken_ = false;
      continue;
    }
    answered = question;
    Status status = co_await Answer(question, base);
    if (!status.ok()) co_return status;
  }
  co_return OkStatus();
}

asio::awaitable<Status> LiveLanes::Lane::Answer(uint64_t question, Version base) {
  BlockRequest request{.kind = static_cast<uint8_t>(RequestKind::kLive),
                       .request_id = next_request_++,
                       .first_block = share_,
                       .block_count = static_cast<uint32_t>(options_->tickets.size()),
                       .exact_version = base};
  Seal(request);
  if (Status status = co_await WriteAll(socket_, AsBytes(request), options_->connect_timeout); !status.ok())
    co_return status;
  for (uint32_t blocks = 0;; ++blocks) {
    FrameHeader frame;
    Status status = co_await reader_->Read({reinterpret_cast<std::byte*>(&frame), sizeof frame});
    const ModelLayout& layout = *options_->layout;
    if (status.ok()) status = CheckFrame(frame, layout.block_bytes(), layout.block_count());
    if (!status.ok()) co_return status;
    if (frame.request_id != request.request_id) {
      co_return Status(ErrorCode::kProtocol,
                       Cat("a frame answers request ", frame.request_id, " where ", request.request_id, " is due"));
    }
    switch (static_cast<FrameType>(frame.type)) {
      case FrameType::kBlock:
        status = co_await ReceiveBlock(question, frame);
        if (!status.ok()) co_return status;
        break;
      case FrameType::kError:
        co_return co_await ReceiveError(question, frame);
      case FrameType::kRequestEnd:
        if (frame.block != blocks || frame.version <= base) {
          co_return Status(ErrorCode::kProtocol, Cat("a live share of ", blocks, " blocks ends with ", frame.block,
                                                     " and version ", frame.version));
        }
        co_return basket_->EndShare(question, frame.version);
    }
  }
}

asio::awaitable<Status> LiveLanes::Lane::ReceiveBlock(uint64_t question, const FrameHeader& frame) {
  if (Status status = basket_->Admit(frame, share_); !status.ok()) co_return status;
  DeltaBlock block{.block = frame.block,
                   .codec = static_cast<Codec>(frame.codec),
                   .changes = frame.changes,
                   .target_hash = frame.block_hash,
                   .data_hash = frame.payload_hash,
                   .data = Bytes(frame.payload_bytes)};
  if (Status status = co_await reader_->Read(block.data); !status.ok()) co_return status;
  if (Status status = CheckFramePayload(frame, block.data); !status.ok()) co_return status;
  basket_->Add(question, std::move(block));
  co_return OkStatus();
}

asio::awaitable<Status> LiveLanes::Lane::ReceiveError(uint64_t question, const FrameHeader& frame) {
  Bytes text(frame.payload_bytes);
  if (Status status = co_await reader_->Read(text); !status.ok()) co_return status;
  if (Status status = CheckFramePayload(frame, text); !status.ok()) co_return status;
  basket_->Refuse(question, {static_cast<ErrorCode>(frame.block), Cat("the agent says: ", CleanText(AsText(text)))});
  co_return OkStatus();
}

LiveLanes::LiveLanes(IoThreads& io, LiveOptions options)
    : basket_(std::make_shared<LiveBasket>(options.layout, options.tickets.size())) {
  const auto shared_options = std::make_shared<const LiveOptions>(std::move(options));
  for (uint32_t share = 0; share < shared_options->tickets.size(); ++share) {
    lanes_.push_back(std::make_shared<Lane>(io, shared_options, basket_, share));
    lanes_.back()->Start();
  }
}

LiveLanes::~LiveLanes() {
  for (const auto& lane : lanes_) lane->Stop();
  basket_->WaitForLanes();
}

void LiveLanes::Ask(Version base) {
  basket_->Begin(base);
  for (const auto& lane : lanes_) lane->Wake();
}

Result<LiveLanes::Delta> LiveLanes::Take(std::chrono::milliseconds patience) {
  return basket_->Take(patience);
}

Status LiveLanes::status() const {
  return basket_->status();
}

uint64_t LiveLanes::received_bytes() const {
  return basket_->bytes();
}

void LiveLanes::Cancel() {
  basket_->Cancel();
}

}  // namespace lockstep

#include "raas_receiver/pull/live_lane.h"

#include "common/base/text.h"
#include "common/net/burst.h"
#include "raas_receiver/pull/block_sink.h"

namespace lockstep::pull {

LiveLane::LiveLane(net::IoThreads& io, std::shared_ptr<const LanePeer> peer, std::shared_ptr<LiveCollector> collector,
                   uint32_t share)
    : peer_(std::move(peer)),
      collector_(std::move(collector)),
      share_(share),
      strand_(asio::make_strand(io.context())),
      connection_(strand_, *peer_, "live lane", share),
      wakeup_(strand_) {}

void LiveLane::Start() {
  net::Spawn(strand_, Run());
}

void LiveLane::Wake() {
  asio::post(strand_, [self = shared_from_this()] { self->wakeup_.Wake(); });
}

void LiveLane::Stop() {
  asio::post(strand_, [self = shared_from_this()] {
    self->stopped_ = true;
    self->wakeup_.Wake();
    self->connection_.Close();
  });
}

asio::awaitable<void> LiveLane::Run() {
  const auto self = shared_from_this();
  Status status = co_await Open();
  if (status.ok()) status = co_await Serve();
  connection_.Close();
  stopped_ = true;
  collector_->Leave(connection_.Explain(status.ok() ? Status(ErrorCode::kCancelled, "closed") : status));
}

asio::awaitable<Status> LiveLane::Open() {
  if (Status status = co_await connection_.Open(); !status.ok()) co_return status;
  if (stopped_) co_return Status(ErrorCode::kCancelled, "the subscription ends");
  net::KeepAlive(connection_.socket());
  co_return co_await connection_.Enter(peer_->tickets[share_], {});
}

asio::awaitable<Status> LiveLane::Serve() {
  uint32_t answered = 0;
  while (!stopped_) {
    const LiveCollector::Request request = collector_->request();
    if (request.number == answered) {
      co_await wakeup_.Wait();
      continue;
    }
    answered = request.number;
    wire::BlockRequest message{.kind = static_cast<uint8_t>(wire::RequestKind::kLive),
                               .request_id = request.number,
                               .first_block = share_,
                               .block_count = static_cast<uint32_t>(peer_->tickets.size()),
                               .exact_version = request.base};
    wire::Seal(message);
    Status status = co_await connection_.Send(AsBytes(message), peer_->connect_timeout);
    if (status.ok()) status = co_await ReceiveShare(request);
    if (!status.ok()) co_return status;
  }
  co_return OkStatus();
}

// The lane's share of the delta, or the agent's refusal.
asio::awaitable<Status> LiveLane::ReceiveShare(const LiveCollector::Request& request) {
  Status status;
  for (uint32_t blocks = 0; status.ok(); ++blocks) {
    wire::FrameHeader frame;
    status = co_await connection_.ReadFrame(frame, request.number);
    if (!status.ok()) break;
    switch (static_cast<wire::FrameType>(frame.type)) {
      case wire::FrameType::kBlock:
        status = co_await ReceiveBlock(frame);
        break;
      case wire::FrameType::kError: {
        Status refusal;
        status = co_await connection_.ReadRefusal(frame, refusal);
        if (status.ok()) collector_->Refuse(refusal.WithContext("the agent says"));
        co_return status;
      }
      case wire::FrameType::kRequestEnd:
        if (frame.block != blocks || frame.version <= request.base) {
          co_return Status(ErrorCode::kProtocol, Cat("a live share of ", blocks, " blocks ends with ", frame.block,
                                                     " and version ", frame.version));
        }
        co_return collector_->EndShare(frame.version);
    }
  }
  co_return status;
}

asio::awaitable<Status> LiveLane::ReceiveBlock(const wire::FrameHeader& frame) {
  if (Status status = collector_->Admit(frame, share_); !status.ok()) co_return status;
  payload::DeltaBlock block = EntryOf(frame, Bytes(frame.payload_bytes));
  if (Status status = co_await connection_.Read(block.data); !status.ok()) co_return status;
  if (Status status = wire::CheckFramePayload(frame, block.data); !status.ok()) co_return status;
  collector_->Add(std::move(block));
  co_return OkStatus();
}

}  // namespace lockstep::pull

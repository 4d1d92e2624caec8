#include "raas_receiver/pull/live_lane.h"

#include "common/base/text.h"
#include "common/net/burst.h"

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
  uint64_t answered = 0;
  while (!stopped_) {
    const LiveCollector::Request request = collector_->request();
    if (request.number == answered) {
      co_await wakeup_.Wait();
      continue;
    }
    answered = request.number;
    if (Status status = co_await Fetch(request); !status.ok()) co_return status;
  }
  co_return OkStatus();
}

// The lane's share of the delta, or the agent's refusal.
asio::awaitable<Status> LiveLane::Fetch(const LiveCollector::Request& request) {
  wire::BlockRequest message{.kind = static_cast<uint8_t>(wire::RequestKind::kLive),
                             .request_id = next_request_++,
                             .first_block = share_,
                             .block_count = static_cast<uint32_t>(peer_->tickets.size()),
                             .exact_version = request.base};
  wire::Seal(message);
  Status status = co_await connection_.Send(AsBytes(message), peer_->connect_timeout);
  if (status.ok()) status = co_await ReceiveShare(request, message.request_id);
  co_return status;
}

asio::awaitable<Status> LiveLane::ReceiveShare(const LiveCollector::Request& request, uint32_t request_id) {
  for (uint32_t blocks = 0;; ++blocks) {
    wire::FrameHeader frame;
    Status status = co_await connection_.Read({reinterpret_cast<std::byte*>(&frame), sizeof frame});
    if (status.ok()) status = connection_.Check(frame, request_id);
    if (!status.ok()) co_return status;
    switch (static_cast<wire::FrameType>(frame.type)) {
      case wire::FrameType::kBlock:
        status = co_await ReceiveBlock(request, frame);
        if (!status.ok()) co_return status;
        break;
      case wire::FrameType::kError:
        co_return co_await ReceiveRefusal(request, frame);
      case wire::FrameType::kRequestEnd:
        if (frame.block != blocks || frame.version <= request.base) {
          co_return Status(ErrorCode::kProtocol, Cat("a live share of ", blocks, " blocks ends with ", frame.block,
                                                     " and version ", frame.version));
        }
        co_return collector_->EndShare(request.number, frame.version);
    }
  }
}

asio::awaitable<Status> LiveLane::ReceiveBlock(const LiveCollector::Request& request, const wire::FrameHeader& frame) {
  if (Status status = collector_->Admit(frame, share_); !status.ok()) co_return status;
  payload::DeltaBlock block{.block = frame.block,
                            .codec = static_cast<payload::Codec>(frame.codec),
                            .changes = frame.changes,
                            .target_hash = frame.block_hash,
                            .data_hash = frame.payload_hash,
                            .data = Bytes(frame.payload_bytes)};
  if (Status status = co_await connection_.Read(block.data); !status.ok()) co_return status;
  if (Status status = wire::CheckFramePayload(frame, block.data); !status.ok()) co_return status;
  collector_->Add(request.number, std::move(block));
  co_return OkStatus();
}

asio::awaitable<Status> LiveLane::ReceiveRefusal(const LiveCollector::Request& request,
                                                 const wire::FrameHeader& frame) {
  Status refusal;
  if (Status status = co_await connection_.ReadRefusal(frame, refusal); !status.ok()) co_return status;
  collector_->Refuse(request.number, refusal.WithContext("the agent says"));
  co_return OkStatus();
}

}  // namespace lockstep::pull

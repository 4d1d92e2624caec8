#include "trainer_agent/serve/streaming_answers.h"

#include <sys/socket.h>

#include <cerrno>

namespace lockstep::serve {

asio::awaitable<Result<LaneAnswer>> StreamingAnswers::SendStream(const wire::BlockRequest& request) {
  LaneAnswer answer;
  WatchPeer();
  const auto found = co_await UntilBegun(request.exact_version, answer.refusal);
  if (!found.ok()) co_return found.status();
  if (!answer.refusal.ok()) co_return answer;
  run::StreamingDelta& delta = **found;
  span_.Restart();
  for (size_t seen = 0;;) {
    const run::StreamingDelta::Update update = delta.Since(seen);
    answer.refusal = update.aborted;
    if (!answer.refusal.ok()) co_return answer;
    if (Status status = co_await SendShare(request, delta, update.blocks, answer); !status.ok()) co_return status;
    seen += update.blocks.size();
    if (update.sealed) break;
    if (!delta.WakeOnUpdate(seen, wakeup_, wakeup_->Waker())) continue;
    if (Status status = co_await UntilWoken(); !status.ok()) co_return status;
  }
  answer.target = delta.target();
  co_return answer;
}

// The delta from `base` on, once it was begun. `refusal` says why there will be none.
asio::awaitable<Result<std::shared_ptr<run::StreamingDelta>>> StreamingAnswers::UntilBegun(Version base,
                                                                                           Status& refusal) {
  run::DeltaFeed& feed = pull_.run->feed();
  while (true) {
    const Result<std::shared_ptr<run::StreamingDelta>> found = feed.Find(base);
    refusal = found.status();
    if (!found.ok()) co_return std::shared_ptr<run::StreamingDelta>();
    if (*found != nullptr) co_return *found;
    if (!feed.WakeWhenBegun(base, wakeup_, wakeup_->Waker())) continue;
    if (Status status = co_await UntilWoken(); !status.ok()) co_return status;
  }
}

asio::awaitable<Status> StreamingAnswers::SendShare(const wire::BlockRequest& request, const run::StreamingDelta& delta,
                                                    const Blocks& blocks, LaneAnswer& answer) {
  for (const auto& block : blocks) {
    if (block->block % request.block_count != request.first_block) continue;
    writer_.Add({.type = static_cast<uint8_t>(wire::FrameType::kBlock),
                 .codec = static_cast<uint8_t>(block->codec),
                 .request_id = request.request_id,
                 .block = block->block,
                 .version = delta.target(),
                 .base_version = delta.base(),
                 .block_hash = block->target_hash,
                 .payload_hash = block->data_hash,
                 .payload_bytes = static_cast<uint32_t>(block->data.size()),
                 .changes = block->changes},
                block->data);
    ++answer.frames;
    if (!writer_.full()) continue;
    if (Status status = co_await writer_.Flush(); !status.ok()) co_return status;
  }
  co_return co_await writer_.Flush();
}

// Until there may be more to send. kUnavailable: the peer went away meanwhile.
asio::awaitable<Status> StreamingAnswers::UntilWoken() {
  co_await wakeup_->Wait();
  if (pull_.closed()) co_return Status(ErrorCode::kUnavailable, "the pull was closed");
  if (!*peer_spoke_) co_return OkStatus();
  std::byte byte;
  const ssize_t there = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  const bool nothing = there < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (nothing) WatchPeer();  // it was the request in hand that had become readable
  if (nothing) co_return OkStatus();
  if (there > 0) co_return Status(ErrorCode::kProtocol, "asked again before its stream request was answered");
  co_return Status(ErrorCode::kUnavailable, "the peer left while it waited for a version");
}

// Wakes the lane when the peer closes, or asks for more before it was answered.
void StreamingAnswers::WatchPeer() {
  if (peer_spoke_ != nullptr && !*peer_spoke_) return;
  peer_spoke_ = std::make_shared<bool>(false);
  socket_.async_wait(asio::socket_base::wait_read, [spoke = peer_spoke_, wakeup = wakeup_](const asio::error_code&) {
    *spoke = true;
    wakeup->Wake();
  });
}

}  // namespace lockstep::serve

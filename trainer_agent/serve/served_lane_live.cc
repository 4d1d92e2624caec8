// What a lane answers to a LIVE request: its share of a delta while that is being made (FORMAT.md, "Live").
#include <sys/socket.h>

#include <cerrno>

#include "common/base/text.h"
#include "trainer_agent/serve/served_lane.h"

namespace lockstep {

asio::awaitable<Status> ServedLane::SendLive(const BlockRequest& request) {
  WatchPeer();
  const auto found = co_await UntilBegun(request.exact_version);
  if (!found.ok()) co_return found.status();
  if (!refusal_.ok()) co_return OkStatus();
  LiveDelta& delta = **found;
  span_.BeginAnew();
  for (size_t seen = 0;;) {
    const LiveDelta::Update news = delta.Since(seen);
    refusal_ = news.aborted;
    if (!refusal_.ok()) co_return OkStatus();
    if (Status status = co_await SendShare(request, delta, news.blocks); !status.ok()) co_return status;
    seen += news.blocks.size();
    if (news.sealed) break;
    delta.WakeOnUpdate(seen, bell_, bell_->Ringer());
    if (Status status = co_await UntilRung(); !status.ok()) co_return status;
  }
  live_target_ = delta.target();
  co_return OkStatus();
}

// The delta from `base` on, once it was begun. refusal_ says why there will be none; an error ends the lane.
asio::awaitable<Result<std::shared_ptr<LiveDelta>>> ServedLane::UntilBegun(Version base) {
  LiveFeed& feed = pull_.run->live();
  while (true) {
    const Result<std::shared_ptr<LiveDelta>> found = feed.Find(base);
    refusal_ = found.status();
    if (!found.ok()) co_return std::shared_ptr<LiveDelta>();
    if (*found != nullptr) co_return *found;
    feed.WakeWhenBegun(base, bell_, bell_->Ringer());
    if (Status status = co_await UntilRung(); !status.ok()) co_return status;
  }
}

asio::awaitable<Status> ServedLane::SendShare(const BlockRequest& request, const LiveDelta& delta,
                                              const std::vector<std::shared_ptr<const DeltaBlock>>& blocks) {
  for (const auto& block : blocks) {
    if (block->block % request.block_count != request.first_block) continue;
    writer_.Add({.type = static_cast<uint8_t>(FrameType::kBlock),
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
    ++sent_;
    if (!writer_.full()) continue;
    if (Status status = co_await FlushPaced(); !status.ok()) co_return status;
  }
  co_return co_await FlushPaced();
}

// Until there may be news. kUnavailable: the peer went away meanwhile.
asio::awaitable<Status> ServedLane::UntilRung() {
  co_await bell_->Wait();
  if (pull_.closed()) co_return Status(ErrorCode::kUnavailable, "the subscription was closed");
  if (!*peer_spoke_) co_return OkStatus();
  std::byte byte;
  const ssize_t there = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  const bool nothing = there < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (nothing) WatchPeer();  // what rang was the request in hand
  if (nothing) co_return OkStatus();
  if (there > 0) co_return Status(ErrorCode::kProtocol, "asked again before its live request was answered");
  co_return Status(ErrorCode::kUnavailable, "the peer left while it waited for a version");
}

// Rings when the peer closes, or asks for more before it was answered.
void ServedLane::WatchPeer() {
  if (peer_spoke_ != nullptr && !*peer_spoke_) return;
  peer_spoke_ = std::make_shared<bool>(false);
  socket_.async_wait(asio::socket_base::wait_read, [spoke = peer_spoke_, bell = bell_](const asio::error_code&) {
    *spoke = true;
    bell->Ring();
  });
}

}  // namespace lockstep

#include "common/rpc/http2_guard.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::rpc {
namespace {

using Clock = std::chrono::steady_clock;

// gRPC sees to some thousand calls a second, and to fewer on a busy machine.
constexpr std::chrono::seconds kUntilForgotten{4};

Status TooMuch(std::string_view what) {
  return {ErrorCode::kResourceExhausted, std::string(what)};
}

}  // namespace

asio::awaitable<bool> CallSlots::Take(Clock::time_point deadline, Turn& turn) {
  if (free_ > 0) {
    --free_;
    co_return true;
  }
  full_();
  turn = std::make_shared<asio::steady_timer>(context_, deadline);
  waiting_.push_back(turn);
  asio::error_code cancelled;
  co_await turn->async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  const auto place = std::ranges::find(waiting_, turn);
  if (place == waiting_.end()) co_return true;  // Return() gave it a slot
  waiting_.erase(place);
  co_return false;
}

void CallSlots::Leave(const Turn& turn) {
  if (turn != nullptr) turn->expires_at(Clock::time_point::min());
}

void CallSlots::Return(size_t slots) {
  for (; slots > 0 && !waiting_.empty(); --slots) {
    waiting_.front()->cancel();
    waiting_.pop_front();
  }
  free_ += slots;
}

void CallSlots::ReturnLater(size_t slots) {
  if (slots == 0) return;
  const auto timer = std::make_shared<asio::steady_timer>(context_, kUntilForgotten);
  timer->async_wait([this, timer, slots](const asio::error_code&) { Return(slots); });
}

std::optional<Http2FrameHeader> Http2FrameReader::Next(ByteView& bytes) {
  while (!bytes.empty()) {
    const auto skipped = static_cast<size_t>(std::min<uint64_t>(skipped_, bytes.size()));
    skipped_ -= skipped;
    bytes = bytes.subspan(skipped);
    if (bytes.empty()) break;
    header_[filled_++] = static_cast<uint8_t>(bytes.front());
    bytes = bytes.subspan(1);
    if (filled_ < header_.size()) continue;
    filled_ = 0;
    const auto& h = header_;
    const Http2FrameHeader header{
        .payload_bytes = uint32_t{h[0]} << 16 | uint32_t{h[1]} << 8 | h[2],
        .type = h[3],
        .flags = h[4],
        .stream = (uint32_t{h[5]} << 24 | uint32_t{h[6]} << 16 | uint32_t{h[7]} << 8 | h[8]) & 0x7fffffff};
    skipped_ = header.payload_bytes;
    return header;
  }
  return std::nullopt;
}

Http2Guard::~Http2Guard() {
  const auto unanswered = std::ranges::count_if(calls_, [](const auto& call) { return !call.second.answered; });
  slots_->ReturnLater(static_cast<size_t>(unanswered));
}

Result<Http2Guard::Passed> Http2Guard::FromPeer(ByteView bytes) {
  ByteView rest = bytes;
  while (const std::optional<Http2FrameHeader> frame = from_peer_.Next(rest)) {
    const bool of_request = frame->type == Http2FrameHeader::kData || frame->type == Http2FrameHeader::kHeaders ||
                            frame->type == Http2FrameHeader::kContinuation;
    if (of_request) unanswered_ += Http2FrameHeader::kBytes + frame->payload_bytes;
    if (unanswered_ > limits_.unanswered_bytes) {
      return TooMuch(Cat("its peer said more than ", limits_.unanswered_bytes, " bytes that no request of ours has"));
    }
    // gRPC passes over the streams of servers, and makes calls of lower numbers after them.
    if (frame->type == Http2FrameHeader::kHeaders && frame->stream % 2 == 0) {
      return TooMuch(Cat("its peer used the number of a stream that no client has, ", frame->stream));
    }
    if (frame->type == Http2FrameHeader::kHeaders && frame->stream > last_stream_) {
      if (calls_.size() >= limits_.calls) return TooMuch(Cat("its peer made more than ", limits_.calls, " calls"));
      last_stream_ = frame->stream;
      beginning_ = frame;
      return Passed{.bytes = bytes.size() - rest.size(), .begins = true};
    }
    const auto call = calls_.find(frame->stream);
    if (call == calls_.end()) continue;
    if (frame->ends_stream()) call->second.whole = true;
    if (frame->type != Http2FrameHeader::kResetStream) continue;
    if (!call->second.answered) slots_->ReturnLater(1);
    calls_.erase(call);
  }
  if (Clock::now() < deadline()) return Passed{.bytes = bytes.size(), .begins = false};
  return TooMuch(Cat("its peer did not end a request in ", limits_.whole_in.count(), " s"));
}

asio::awaitable<Status> Http2Guard::Begin() {
  // A peer that holds slots without ending its requests waits for no other one longer than it may hold them.
  const bool taken = co_await slots_->Take(std::min(deadline(), Clock::now() + limits_.whole_in), turn_);
  if (!taken) co_return TooMuch("the port has too many calls");
  calls_.emplace(beginning_->stream, Call{.since = Clock::now(), .whole = beginning_->ends_stream()});
  co_return OkStatus();
}

void Http2Guard::FromServer(ByteView bytes) {
  while (const std::optional<Http2FrameHeader> frame = from_server_.Next(bytes)) {
    const bool of_call = frame->type == Http2FrameHeader::kData || frame->type == Http2FrameHeader::kHeaders ||
                         frame->type == Http2FrameHeader::kResetStream;
    if (!of_call || frame->stream == 0) continue;
    unanswered_ = 0;
    const auto call = calls_.find(frame->stream);
    if (call == calls_.end()) continue;
    const bool ends = frame->ends_stream() || frame->type == Http2FrameHeader::kResetStream;
    // What a handler answers begins with headers. gRPC ends a call by itself with one frame, while the call may still
    // be in its queue.
    if (!call->second.answered) {
      call->second.answered = true;
      if (ends) {
        slots_->ReturnLater(1);
      } else {
        slots_->Return(1);
      }
    }
    if (ends) calls_.erase(call);
  }
}

Clock::time_point Http2Guard::deadline() const {
  Clock::time_point first = Clock::time_point::max();
  for (const auto& [stream, call] : calls_) {
    if (!call.whole) first = std::min(first, call.since + limits_.whole_in);
  }
  return first;
}

}  // namespace lockstep::rpc

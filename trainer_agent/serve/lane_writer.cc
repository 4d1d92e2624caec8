#include "trainer_agent/serve/lane_writer.h"

#include <algorithm>

#include "common/net/burst.h"
#include "kernels/hash.h"

namespace lockstep::serve {

void LaneWriter::Add(wire::FrameHeader header, ByteView payload) {
  headers_.reserve(kMaxFrames + 1);  // an end or error fits too
  wire::Seal(header);
  headers_.push_back(header);
  pieces_.push_back(net::Piece(AsBytes(headers_.back())));
  if (!payload.empty()) pieces_.push_back(net::Piece(payload));
  bytes_ += sizeof header + payload.size();
}

void LaneWriter::AddEnd(uint32_t request_id, uint32_t frames, Version version) {
  Add({.type = static_cast<uint8_t>(wire::FrameType::kRequestEnd),
       .request_id = request_id,
       .block = frames,
       .version = version},
      {});
}

void LaneWriter::AddError(uint32_t request_id, const Status& error) {
  const ByteView text = AsBytes(std::string_view(error.message()).substr(0, wire::kMaxErrorText));
  kept_.assign(text.begin(), text.end());
  Add({.type = static_cast<uint8_t>(wire::FrameType::kError),
       .request_id = request_id,
       .block = static_cast<uint32_t>(error.code()),
       .payload_hash = Hash64(text),
       .payload_bytes = static_cast<uint32_t>(text.size())},
      kept_);
}

asio::awaitable<Status> LaneWriter::Flush() {
  const size_t bytes = bytes_;
  if (bytes == 0) co_return OkStatus();
  co_await WaitForPace(bytes);
  Count(bytes);
  co_return co_await SendKept();
}

asio::awaitable<void> LaneWriter::WaitForPace(uint64_t bytes) {
  const auto wait = pace_.Book(bytes);
  if (wait.count() == 0) co_return;
  asio::steady_timer timer(stream_.socket().get_executor(), wait);
  asio::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

void LaneWriter::Count(uint64_t bytes) {
  pace_.Sent(bytes);
  span_.Sent(bytes);
}

asio::awaitable<Status> LaneWriter::SendKept() {
  pull_.Touch();
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  while (bytes_ > 0 || stream_.unsent()) {
    const Result<size_t> sent = stream_.SendNow(std::span(pieces_).subspan(next_));
    if (!sent.ok()) co_return sent.status();
    Skip(*sent);
    if (bytes_ == 0 && !stream_.unsent()) break;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const auto wait = std::max(left, std::chrono::milliseconds(0));
    if (Status status = co_await stream_.UntilReady(asio::socket_base::wait_write, wait); !status.ok()) {
      co_return status;
    }
  }
  Clear();
  co_return OkStatus();
}

asio::awaitable<Status> LaneWriter::UntilWritable() {
  return stream_.UntilReady(asio::socket_base::wait_write, timeout_);
}

Result<uint32_t> LaneWriter::SendLent() {
  LS_ASSIGN_OR_RETURN(const size_t sent, stream_.SendNow(pieces_));
  return KeepCutFrame(sent);
}

// Drops what was added but the rest of the frame that `sent` bytes end in. Returns how many frames have begun.
uint32_t LaneWriter::KeepCutFrame(size_t sent) {
  uint32_t frames = 0;
  size_t end = 0;  // of the frames counted
  while (end < sent) end += sizeof(wire::FrameHeader) + headers_[frames++].payload_bytes;
  if (frames > 0) Count(end - frames * sizeof(wire::FrameHeader));
  Skip(sent);
  kept_.clear();
  for (const size_t rest = end - sent; kept_.size() < rest; ++next_) {
    const auto* piece = static_cast<const std::byte*>(pieces_[next_].iov_base);
    AppendBytes(kept_, {piece, pieces_[next_].iov_len});
  }
  Clear();
  if (kept_.empty()) return frames;
  pieces_.push_back(net::Piece(kept_));
  bytes_ = kept_.size();
  return frames;
}

void LaneWriter::Skip(size_t bytes) {
  bytes_ -= bytes;
  while (bytes > 0) {
    iovec& piece = pieces_[next_];
    const size_t taken = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + taken;
    piece.iov_len -= taken;
    bytes -= taken;
    if (piece.iov_len == 0) ++next_;
  }
}

void LaneWriter::Clear() {
  headers_.clear();
  pieces_.clear();
  next_ = 0;
  bytes_ = 0;
}

}  // namespace lockstep::serve

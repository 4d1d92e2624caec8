#include "trainer_agent/serve/lane_writer.h"

#include <algorithm>

#include "common/base/hash.h"
#include "common/model/layout.h"

namespace lockstep {
namespace {

// The largest frame fits, and a default block's frames go out a few at a time.
constexpr size_t kBufferBytes = kMaxBlockBytes + sizeof(FrameHeader);

}  // namespace

LaneWriter::LaneWriter(asio::ip::tcp::socket& socket, std::chrono::milliseconds timeout)
    : socket_(socket), timeout_(timeout) {}

asio::awaitable<LaneWriter::Room> LaneWriter::Reserve(uint32_t payload_bytes) {
  Room room;
  if (buffer_.empty()) buffer_.resize(kBufferBytes);
  if (used_ + sizeof(FrameHeader) + payload_bytes > buffer_.size()) room.status = co_await Flush();
  room.payload = std::span(buffer_).subspan(used_ + sizeof(FrameHeader), payload_bytes);
  co_return room;
}

void LaneWriter::Commit(FrameHeader header) {
  Seal(header);
  std::memcpy(buffer_.data() + used_, &header, sizeof header);
  used_ += sizeof header + header.payload_bytes;
}

asio::awaitable<Status> LaneWriter::AddEnd(uint32_t request_id, uint32_t frames) {
  const Room room = co_await Reserve(0);
  if (room.status.ok()) {
    Commit({.type = static_cast<uint8_t>(FrameType::kRequestEnd), .request_id = request_id, .block = frames});
  }
  co_return room.status;
}

asio::awaitable<Status> LaneWriter::AddError(uint32_t request_id, const Status& error) {
  const auto text = AsBytes(std::string_view(error.message()).substr(0, kMaxErrorText));
  const Room room = co_await Reserve(static_cast<uint32_t>(text.size()));
  if (room.status.ok()) {
    std::copy(text.begin(), text.end(), room.payload.begin());
    Commit({.type = static_cast<uint8_t>(FrameType::kError),
            .request_id = request_id,
            .block = static_cast<uint32_t>(error.code()),
            .payload_hash = Hash64(text),
            .payload_bytes = static_cast<uint32_t>(text.size())});
  }
  co_return room.status;
}

asio::awaitable<Status> LaneWriter::Flush() {
  const size_t bytes = std::exchange(used_, 0);
  if (bytes == 0) co_return OkStatus();
  co_return co_await WriteAll(socket_, ByteView(buffer_).first(bytes), timeout_);
}

}  // namespace lockstep

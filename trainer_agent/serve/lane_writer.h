// LaneWriter: gathers frames in one buffer and sends it when it is full, so that many small frames cost few system
// calls.
#pragma once

#include <chrono>

#include "common/base/bytes.h"
#include "common/net/lane_io.h"
#include "common/wire/frame.h"

namespace lockstep {

// Used by the one coroutine that owns the lane. After an error the lane is to be closed.
class LaneWriter {
 public:
  LaneWriter(asio::ip::tcp::socket& socket, std::chrono::milliseconds timeout);

  // Where the next frame's payload goes. Sends what is gathered first when there is no room for it.
  struct Room {
    Status status;
    std::span<std::byte> payload;
  };
  asio::awaitable<Room> Reserve(uint32_t payload_bytes);  // REQUIRES at most kMaxBlockBytes
  // Adds the frame whose payload was put in the reserved room; `header.payload_bytes` as reserved.
  void Commit(FrameHeader header);

  asio::awaitable<Status> AddEnd(uint32_t request_id, uint32_t frames);
  asio::awaitable<Status> AddError(uint32_t request_id, const Status& error);
  asio::awaitable<Status> Flush();

 private:
  asio::ip::tcp::socket& socket_;
  const std::chrono::milliseconds timeout_;
  Bytes buffer_;  // taken with the first frame: a lane that asks for nothing costs nothing
  size_t used_ = 0;
};

}  // namespace lockstep

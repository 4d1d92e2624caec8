#include "raas_receiver/pull/lane_entry.h"

#include <algorithm>

#include "common/net/lane_io.h"
#include "common/wire/frame.h"

namespace lockstep {

Bytes HelloOf(const LaneEntry& entry) {
  LaneHello hello;
  hello.pull_id = entry.pull_id;
  hello.ticket = entry.ticket;
  hello.lane = entry.lane;
  Seal(hello);
  Bytes bytes;
  Append(bytes, hello);
  return bytes;
}

asio::awaitable<Status> ReadWelcome(asio::ip::tcp::socket& socket, std::chrono::milliseconds timeout) {
  LaneWelcome welcome;
  Status status = co_await ReadExact(socket, std::as_writable_bytes(std::span(&welcome, 1)), timeout);
  if (status.ok()) status = CheckWelcome(welcome);
  if (status.ok() && welcome.code != 0) {
    const auto code = std::min(welcome.code, static_cast<uint32_t>(ErrorCode::kInternal));
    status = {static_cast<ErrorCode>(code), "the agent refused the lane's ticket"};
  }
  co_return status;
}

}  // namespace lockstep

#include "raas_receiver/pull/lane_connection.h"

#include <algorithm>

#include "common/base/text.h"
#include "common/net/lane_io.h"

namespace lockstep::pull {

LaneConnection::LaneConnection(const Strand& strand, const LanePeer& peer, std::string_view kind, uint32_t number)
    : peer_(peer), kind_(kind), number_(number), socket_(strand) {}

asio::awaitable<Status> LaneConnection::Open() {
  Status status = co_await net::Connect(socket_, peer_.agent, peer_.connect_timeout);
  if (status.ok()) reader_.emplace(socket_);
  co_return status;
}

asio::awaitable<Status> LaneConnection::Enter(const Ticket& ticket, const Bytes& requests) {
  wire::LaneHello hello{.pull_id = peer_.pull_id, .ticket = ticket, .lane = number_};
  wire::Seal(hello);
  Bytes packet;
  Append(packet, hello);
  AppendBytes(packet, requests);
  if (Status status = co_await Send(packet, peer_.connect_timeout); !status.ok()) co_return status;

  wire::LaneWelcome welcome;
  const std::span<std::byte> memory = std::as_writable_bytes(std::span(&welcome, 1));
  Status status = co_await net::ReadExact(socket_, memory, peer_.connect_timeout);
  if (status.ok()) status = wire::CheckWelcome(welcome);
  if (status.ok() && welcome.code != 0) {
    const auto code = std::min(welcome.code, static_cast<uint32_t>(ErrorCode::kInternal));
    status = {static_cast<ErrorCode>(code), "the agent refused the lane's ticket"};
  }
  co_return status;
}

asio::awaitable<Status> LaneConnection::Send(ByteView bytes, std::chrono::milliseconds timeout) {
  return net::WriteAll(socket_, bytes, timeout);
}

Status LaneConnection::Check(const wire::FrameHeader& frame, uint32_t request_id) const {
  LS_RETURN_IF_ERROR(wire::CheckFrame(frame, peer_.layout->block_bytes(), peer_.layout->block_count()));
  if (frame.request_id == request_id) return OkStatus();
  return {ErrorCode::kProtocol, Cat("a frame answers request ", frame.request_id, " where ", request_id, " is due")};
}

asio::awaitable<Status> LaneConnection::ReadRefusal(const wire::FrameHeader& frame, Status& refusal) {
  Bytes text(frame.payload_bytes);
  if (Status status = co_await Read(text); !status.ok()) co_return status;
  if (Status status = wire::CheckFramePayload(frame, text); !status.ok()) co_return status;
  refusal = {static_cast<ErrorCode>(frame.block), CleanText(AsText(text))};
  co_return OkStatus();
}

void LaneConnection::Close() {
  asio::error_code ignored;
  socket_.close(ignored);
}

Status LaneConnection::Explain(const Status& status) const {
  return status.WithContext(Cat(kind_, " ", number_, " of pull ", peer_.pull_id, " to ", peer_.agent.ToString()));
}

}  // namespace lockstep::pull

#include "raas_receiver/pull/lane_connection.h"

#include <algorithm>
#include <array>
#include <asio/experimental/as_tuple.hpp>
#include <cstring>

#include "common/base/text.h"
#include "common/net/burst.h"
#include "common/net/lane_io.h"
#include "common/wire/lane_identity.h"

namespace lockstep::pull {
namespace {

constexpr auto kAwait = asio::experimental::as_tuple(asio::use_awaitable);
constexpr size_t kBufferBytes = 64 << 10;
// From this size on bytes go straight to their place; only headers that follow are read along into the buffer: an end,
// and the next frame's.
constexpr size_t kDirectBytes = 16 << 10;
constexpr size_t kAheadBytes = 2 * sizeof(wire::FrameHeader);
// To be woken for less costs more than it brings, when more is due.
constexpr size_t kWakeBytes = 64 << 10;

}  // namespace

LaneConnection::LaneConnection(const Strand& strand, const LanePeer& peer, std::string_view kind, uint32_t number)
    : peer_(peer), kind_(kind), number_(number), stream_(asio::ip::tcp::socket(strand)) {}

asio::awaitable<Status> LaneConnection::Open() {
  Status status = co_await stream_.Connect(peer_.agent, peer_.connect_timeout);
  buffer_.resize(kBufferBytes);
  begin_ = end_ = 0;
  large_ = false;
  Touch();
  if (!status.ok() || peer_.tls != nullptr) co_return status;
  asio::error_code gone;
  const asio::ip::address address = socket().remote_endpoint(gone).address();
  if (gone) co_return net::NetStatus(gone, "connecting");
  if (!peer_.plain.Contain(address)) co_return net::NotInPlaintext("the agent's lane port", address.to_string());
  co_return status;
}

asio::awaitable<Status> LaneConnection::Encrypt(const Ticket& ticket) {
  const wire::LaneIdentity identity{.pull_id = peer_.pull_id, .ticket = wire::NameOf(ticket)};
  Bytes name;
  Append(name, identity);
  return stream_.ConnectTls(peer_.tls, std::move(name), ticket.bytes, peer_.connect_timeout);
}

asio::awaitable<Status> LaneConnection::Enter(const Ticket& ticket, const Bytes& requests) {
  wire::LaneHello hello{.pull_id = peer_.pull_id, .lane = number_};
  if (peer_.tls == nullptr) {
    hello.ticket = ticket;
  } else if (Status status = co_await Encrypt(ticket); !status.ok()) {
    co_return status;
  }
  wire::Seal(hello);
  Bytes packet;
  Append(packet, hello);
  AppendBytes(packet, requests);
  if (Status status = co_await Send(packet, peer_.connect_timeout); !status.ok()) co_return status;

  wire::LaneWelcome welcome;
  const std::span<std::byte> memory = std::as_writable_bytes(std::span(&welcome, 1));
  Status status = co_await stream_.ReadExact(memory, peer_.connect_timeout);
  if (status.ok()) status = wire::CheckWelcome(welcome);
  if (status.ok() && welcome.code != 0) {
    const auto code = std::min(welcome.code, static_cast<uint32_t>(ErrorCode::kInternal));
    status = {static_cast<ErrorCode>(code), "the agent refused the lane's ticket"};
  }
  co_return status;
}

asio::awaitable<Status> LaneConnection::Send(ByteView bytes, std::chrono::milliseconds timeout) {
  return stream_.WriteAll(bytes, timeout);
}

size_t LaneConnection::TakeBuffered(std::span<std::byte> out) {
  const size_t bytes = std::min(out.size(), end_ - begin_);
  std::memcpy(out.data(), buffer_.data() + begin_, bytes);
  begin_ += bytes;
  return bytes;
}

asio::awaitable<Status> LaneConnection::Read(std::span<std::byte> out) {
  if (out.size() > kAheadBytes) large_ = out.size() >= kDirectBytes;
  while (true) {
    out = out.subspan(TakeBuffered(out));
    if (out.empty()) co_return OkStatus();
    const bool direct = out.size() >= kDirectBytes;
    const std::array into{net::Piece(out.first(direct ? out.size() : 0)),
                          net::Piece(ByteView(buffer_).first(large_ ? kAheadBytes : buffer_.size()))};
    const Result<size_t> got = stream_.ReceiveNow(into);
    if (!got.ok()) co_return got.status();
    if (*got == 0) {
      stream_.SetLowWater(std::min(out.size(), kWakeBytes));
      const auto [error] = co_await socket().async_wait(asio::socket_base::wait_read, kAwait);
      if (error) co_return net::NetStatus(error, "read from peer");
      continue;
    }
    Touch();
    const size_t placed = direct ? std::min(*got, out.size()) : 0;
    out = out.subspan(placed);
    begin_ = 0;
    end_ = *got - placed;
  }
}

asio::awaitable<Status> LaneConnection::ReadFrame(wire::FrameHeader& frame, uint32_t request_id) {
  Status status = co_await Read(std::as_writable_bytes(std::span(&frame, 1)));
  if (status.ok()) status = wire::CheckFrame(frame, peer_.layout->block_bytes(), peer_.layout->block_count());
  if (status.ok() && frame.request_id != request_id) {
    status = {ErrorCode::kProtocol,
              Cat("a frame answers request ", frame.request_id, " where ", request_id, " is due")};
  }
  co_return status;
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
  socket().close(ignored);
}

Status LaneConnection::Explain(const Status& status) const {
  return status.WithContext(Cat(kind_, " ", number_, " of pull ", peer_.pull_id, " to ", peer_.agent.ToString()));
}

}  // namespace lockstep::pull

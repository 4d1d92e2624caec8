#include "raas_receiver/pull/frame_reader.h"

#include <algorithm>
#include <array>
#include <asio/experimental/as_tuple.hpp>
#include <cstring>

#include "common/net/burst.h"
#include "common/net/lane_io.h"
#include "common/wire/frame.h"

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

FrameReader::FrameReader(asio::ip::tcp::socket& socket) : socket_(socket), buffer_(kBufferBytes) {
  Touch();
}

size_t FrameReader::TakeBuffered(std::span<std::byte> out) {
  const size_t bytes = std::min(out.size(), end_ - begin_);
  std::memcpy(out.data(), buffer_.data() + begin_, bytes);
  begin_ += bytes;
  return bytes;
}

asio::awaitable<Status> FrameReader::Read(std::span<std::byte> out) {
  if (out.size() > kAheadBytes) large_ = out.size() >= kDirectBytes;
  while (true) {
    out = out.subspan(TakeBuffered(out));
    if (out.empty()) co_return OkStatus();
    const bool direct = out.size() >= kDirectBytes;
    const std::array into{net::Piece(out.first(direct ? out.size() : 0)),
                          net::Piece(ByteView(buffer_).first(large_ ? kAheadBytes : buffer_.size()))};
    const Result<size_t> got = net::ReceiveNow(socket_, into);
    if (!got.ok()) co_return got.status();
    if (*got == 0) {
      net::SetLowWater(socket_, std::min(out.size(), kWakeBytes));
      const auto [error] = co_await socket_.async_wait(asio::socket_base::wait_read, kAwait);
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

}  // namespace lockstep::pull

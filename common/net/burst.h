// TCP without waiting: one system call for many pieces of memory, and what the kernel knows of the connection.
//
// For bulk data: a coroutine that sends or receives megabytes spends its time in the kernel's copy, not in waiting, and
// the memory is only touched inside the call. A coroutine that gets nothing done waits with UntilReady (lane_io.h).
// Lanes use it through PeerStream.
#pragma once

#include <sys/uio.h>

#include <asio.hpp>
#include <chrono>
#include <cstddef>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace lockstep::net {

inline iovec Piece(ByteView bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

// Sends as much of `pieces`, in order, as the socket takes at once: bytes, 0 for none. kUnavailable: the peer is gone.
Result<size_t> SendNow(asio::ip::tcp::socket& socket, std::span<const iovec> pieces);

// Fills `pieces`, in order, with what has come: bytes, 0 for none yet. kUnavailable: the peer closed or reset.
Result<size_t> ReceiveNow(asio::ip::tcp::socket& socket, std::span<const iovec> pieces);

// The smoothed round trip as the kernel sees it; 0 when the socket is not connected.
std::chrono::microseconds RoundTrip(asio::ip::tcp::socket& socket);

// Lets the peer send so much ahead at once. The kernel widens a window only for a reader that outruns it; one that is
// busy between its reads would leave the peer waiting for every acknowledgement. It still widens it where links are
// long.
void OpenWindow(asio::ip::tcp::socket& socket, size_t bytes);

// Waiting to read ends when so many bytes have come, or none more will.
void SetLowWater(asio::ip::tcp::socket& socket, size_t bytes);

// A peer that vanished is noticed within two minutes, however long both ends are silent.
void KeepAlive(asio::ip::tcp::socket& socket);

}  // namespace lockstep::net

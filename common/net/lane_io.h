// TCP with deadlines, as coroutines: what both ends of a lane are built from.
//
// The executor of a socket must be a strand (asio::make_strand), and its coroutines must run on it: that is what makes
// the deadlines safe on several threads. At most one read and one write at a time.
//
// Outcomes: kDeadline when the whole of the call was not done in time (a peer that trickles bytes is late all the
// same); kUnavailable when the peer closed, reset or cannot be reached; kCancelled when this side closed or cancelled
// the socket. After any error the stream is out of step and the socket is to be closed; a deadline has cancelled
// whatever else was in progress on it.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <string_view>

#include "common/base/status.h"
#include "common/net/host_port.h"

namespace lockstep::net {

// Until the socket can be read from (its end, too) or written to; what then comes of SendNow or ReceiveNow (burst.h) is
// theirs to say. `doing` is for the error's message.
asio::awaitable<Status> UntilReady(asio::ip::tcp::socket& socket, asio::ip::tcp::socket::wait_type what,
                                   std::string_view doing, std::chrono::milliseconds timeout);

// Resolves and connects, one address after the other, within `timeout`, and sets TCP_NODELAY. `socket` must be closed
// and may have any strand as its executor.
asio::awaitable<Status> Connect(asio::ip::tcp::socket& socket, const HostPort& address,
                                std::chrono::milliseconds timeout);

// An asio error as a Status; `what` says what was being done and with which peer.
Status NetStatus(const asio::error_code& error, std::string_view what);

}  // namespace lockstep::net

// Internal to common/rpc: carries the bytes of one connection between a peer and gRPC, and bounds what the peer may say
// before it is answered.
//
// gRPC keeps a request's headers, however long they go on, until they are whole: 30 MB of a connection and more. Here
// they end: gRPC answers each request, and what it takes of a message it acknowledges, so that a peer that has said
// much and got no word back is none of ours.
#pragma once

#include <asio.hpp>
#include <functional>
#include <optional>

#include "common/net/places.h"

namespace lockstep::rpc {

// One connection's; shared by the coroutines that carry.
struct Relay {
  asio::ip::tcp::socket peer;
  asio::local::stream_protocol::socket server;  // its other end is gRPC's
  size_t most_unanswered;                       // bytes
  std::function<void()> refused;                // called when a peer is cut off for having said more
  std::optional<net::Places::Place> place;

  size_t unanswered = 0;

  void End() {
    asio::error_code ignored;
    peer.close(ignored);
    server.close(ignored);
  }
};

// Until one side has closed, and the other has got what it said. REQUIRES that all of a relay's handlers run on one
// thread.
void StartRelay(const std::shared_ptr<Relay>& relay);

}  // namespace lockstep::rpc

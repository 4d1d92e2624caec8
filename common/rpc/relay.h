// Internal to common/rpc: carries the bytes of one connection between a peer and gRPC. TLS ends here, and what a peer
// may have gRPC keep is bounded here (http2_guard.h).
#pragma once

#include <asio.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "common/net/connection_slots.h"
#include "common/net/peer_stream.h"
#include "common/rpc/http2_guard.h"
#include "common/rpc/peer_certificate.h"

namespace lockstep::rpc {

// The relay of one connection, shared by the coroutines that carry its bytes. All of its handlers run on one thread.
struct Relay {
  Relay(asio::ip::tcp::socket connection, const Http2Guard::Limits& limits, CallSlots* slots)
      : peer(std::move(connection)), server(peer.socket().get_executor()), guard(limits, slots) {}

  net::PeerStream peer;
  asio::local::stream_protocol::socket server;  // its other end is gRPC's
  Http2Guard guard;
  std::function<void(const Status&)> refused;  // called when the peer broke a limit and is cut off
  std::optional<CertifiedPeer> certified;
  std::optional<net::ConnectionSlots::Slot> slot;

  void End() {
    guard.Leave();
    asio::error_code ignored;
    peer.socket().close(ignored);
    server.close(ignored);
  }
};

// Carries bytes until one side has closed and the other has received all of its bytes. REQUIRES both to be connected.
void StartRelay(const std::shared_ptr<Relay>& relay);

}  // namespace lockstep::rpc

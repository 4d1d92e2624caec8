// PeerStream: one TCP connection, plain or encrypted: what both ends of a lane, and a port of the control plane, read
// from and write to.
//
// Without waiting it moves what the socket takes or has, so that memory is touched inside the call only (burst.h);
// with deadlines, as coroutines, what is small (lane_io.h has the rules and outcomes). One that is encrypted has
// kCorrupt too: bytes were changed on their way.
#pragma once

#include <sys/uio.h>

#include <asio.hpp>
#include <chrono>
#include <memory>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/net/host_port.h"
#include "common/net/tls_session.h"

namespace lockstep::net {

class PeerStream {
 public:
  // A plain one. The executor of `socket` is a strand.
  explicit PeerStream(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}
  PeerStream(const PeerStream&) = delete;
  PeerStream& operator=(const PeerStream&) = delete;

  // For options, and to be closed or cancelled: what is in progress ends with an error.
  asio::ip::tcp::socket& socket() { return socket_; }

  // As lane_io.h's; a plain stream. REQUIRES the socket to be closed.
  asio::awaitable<Status> Connect(const HostPort& address, std::chrono::milliseconds timeout);

  // Encrypts what comes from here on, once the peer has proved that it has the secret. Errors as
  // TlsSession::Handshake's. REQUIRES that nothing was sent or received, and that the socket is connected.
  asio::awaitable<Status> ConnectTls(std::shared_ptr<const TlsContext> context, Bytes identity, TlsSecret secret,
                                     std::chrono::milliseconds timeout);
  asio::awaitable<Status> AcceptTls(std::shared_ptr<const TlsContext> context, TlsSession::FindSecret find,
                                    std::chrono::milliseconds timeout);
  // Null: the stream is plain.
  const TlsSession* tls() const { return tls_.get(); }

  // As those of burst.h; of what was taken some may be unsent() here, encrypted, and goes with the next SendNow.
  Result<size_t> SendNow(std::span<const iovec> pieces);
  Result<size_t> ReceiveNow(std::span<const iovec> pieces);
  bool unsent() const { return tls_ != nullptr && tls_->unsent(); }

  // Until SendNow or ReceiveNow, which did nothing before, can do something.
  asio::awaitable<Status> UntilReady(asio::ip::tcp::socket::wait_type what, std::chrono::milliseconds timeout);
  // Waiting to read ends when so many bytes more can be received, or about as many, or none more will.
  void SetLowWater(size_t bytes);

  // Fills `bytes`, or sends all of them. The memory must stay until the coroutine is done.
  asio::awaitable<Status> ReadExact(std::span<std::byte> bytes, std::chrono::milliseconds timeout);
  asio::awaitable<Status> WriteAll(ByteView bytes, std::chrono::milliseconds timeout);

 private:
  asio::awaitable<Status> Shake(Result<std::unique_ptr<TlsSession>> session, std::chrono::milliseconds timeout);

  asio::ip::tcp::socket socket_;
  std::unique_ptr<TlsSession> tls_;  // null: plain
};

}  // namespace lockstep::net

#include "common/net/peer_stream.h"

#include <algorithm>
#include <array>

#include "common/net/burst.h"
#include "common/net/lane_io.h"
#include "common/os/deadline.h"

namespace lockstep::net {
namespace {

using asio::ip::tcp;
using os::Deadline;
using std::chrono::milliseconds;

}  // namespace

asio::awaitable<Status> PeerStream::Connect(const HostPort& address, milliseconds timeout) {
  tls_.reset();
  return net::Connect(socket_, address, timeout);
}

asio::awaitable<Status> PeerStream::ConnectTls(std::shared_ptr<const TlsContext> context, Bytes identity,
                                               TlsSecret secret, milliseconds timeout) {
  return Shake(TlsSession::Connect(std::move(context), socket_, std::move(identity), secret), timeout);
}

asio::awaitable<Status> PeerStream::AcceptTls(std::shared_ptr<const TlsContext> context, TlsSession::FindSecret find,
                                              milliseconds timeout) {
  return Shake(TlsSession::Accept(std::move(context), socket_, std::move(find)), timeout);
}

asio::awaitable<Status> PeerStream::Shake(Result<std::unique_ptr<TlsSession>> session, milliseconds timeout) {
  if (!session.ok()) co_return session.status();
  tls_ = *std::move(session);
  const Deadline deadline(timeout);
  while (true) {
    const Result<bool> done = tls_->Handshake();
    if (!done.ok()) co_return done.status();
    if (*done) co_return OkStatus();
    const auto what = unsent() ? tcp::socket::wait_write : tcp::socket::wait_read;
    if (Status status = co_await net::UntilReady(socket_, what, "TLS handshake", deadline.Left()); !status.ok()) {
      co_return status;
    }
  }
}

Result<size_t> PeerStream::SendNow(std::span<const iovec> pieces) {
  return tls_ == nullptr ? net::SendNow(socket_, pieces) : tls_->SendNow(pieces);
}

Result<size_t> PeerStream::ReceiveNow(std::span<const iovec> pieces) {
  return tls_ == nullptr ? net::ReceiveNow(socket_, pieces) : tls_->ReceiveNow(pieces);
}

asio::awaitable<Status> PeerStream::UntilReady(tcp::socket::wait_type what, milliseconds timeout) {
  return net::UntilReady(socket_, what, "wait for peer", timeout);
}

void PeerStream::SetLowWater(size_t bytes) {
  // Of a record that is not whole all but the last byte may be here already.
  constexpr size_t kRecord = SSL3_RT_MAX_PLAIN_LENGTH;
  net::SetLowWater(socket_, tls_ == nullptr ? bytes : bytes - std::min(bytes - 1, kRecord));
}

asio::awaitable<Status> PeerStream::ReadExact(std::span<std::byte> bytes, milliseconds timeout) {
  const Deadline deadline(timeout);
  while (true) {
    const Result<size_t> got = ReceiveNow(std::array{Piece(bytes)});
    if (!got.ok()) co_return got.status();
    bytes = bytes.subspan(*got);
    if (bytes.empty()) co_return OkStatus();
    Status status = co_await net::UntilReady(socket_, tcp::socket::wait_read, "read from peer", deadline.Left());
    if (!status.ok()) co_return status;
  }
}

asio::awaitable<Status> PeerStream::WriteAll(ByteView bytes, milliseconds timeout) {
  const Deadline deadline(timeout);
  while (true) {
    const Result<size_t> sent = SendNow(std::array{Piece(bytes)});
    if (!sent.ok()) co_return sent.status();
    bytes = bytes.subspan(*sent);
    if (bytes.empty() && !unsent()) co_return OkStatus();
    Status status = co_await net::UntilReady(socket_, tcp::socket::wait_write, "write to peer", deadline.Left());
    if (!status.ok()) co_return status;
  }
}

}  // namespace lockstep::net

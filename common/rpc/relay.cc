#include "common/rpc/relay.h"

#include <algorithm>
#include <array>

#include "common/net/burst.h"
#include "common/net/io_threads.h"

namespace lockstep::rpc {
namespace {

using Buffer = std::array<std::byte, 16 << 10>;

// A peer that takes nothing for so long is gone.
constexpr std::chrono::minutes kTakesNothing{1};
constexpr std::chrono::hours kForever{24 * 365};

std::chrono::milliseconds Until(std::chrono::steady_clock::time_point deadline) {
  if (deadline == std::chrono::steady_clock::time_point::max()) return kForever;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

// What the peer said: bytes of `buffer`, none when a request should have ended by now. kUnavailable: the peer closed.
asio::awaitable<Result<size_t>> Receive(Relay& relay, Buffer& buffer) {
  while (true) {
    const Result<size_t> got = relay.peer.ReceiveNow(std::array{iovec{buffer.data(), buffer.size()}});
    if (!got.ok() || *got > 0) co_return got;
    const Status ready = co_await relay.peer.UntilReady(asio::socket_base::wait_read, Until(relay.guard.deadline()));
    if (ready.code() == ErrorCode::kDeadline) co_return size_t{0};
    if (!ready.ok()) co_return ready;
  }
}

asio::awaitable<bool> Pass(Relay& relay, ByteView bytes) {
  asio::error_code failed;
  co_await asio::async_write(relay.server, asio::buffer(bytes.data(), bytes.size()),
                             asio::redirect_error(asio::use_awaitable, failed));
  co_return !failed;
}

// kUnavailable: gRPC has closed its end. What it said before is still on its way.
asio::awaitable<Status> PassGuarded(Relay& relay, ByteView bytes) {
  const Status closed{ErrorCode::kUnavailable, "gRPC has closed the connection"};
  do {
    const Result<Http2Guard::Passed> passed = relay.guard.FromPeer(bytes);
    if (!passed.ok()) co_return passed.status();
    size_t done = passed->bytes;
    if (passed->begins) {
      if (!co_await Pass(relay, bytes.first(--done))) co_return closed;
      if (Status begun = co_await relay.guard.Begin(); !begun.ok()) co_return begun;
      if (!co_await Pass(relay, bytes.subspan(done++, 1))) co_return closed;
    } else if (!co_await Pass(relay, bytes.first(done))) {
      co_return closed;
    }
    bytes = bytes.subspan(done);
  } while (!bytes.empty());
  co_return OkStatus();
}

// gRPC would wait for the end of the frame that a TLS handshake looks like.
bool SpeaksTls(ByteView first) {
  constexpr std::byte kHandshakeRecord{22};
  return first[0] == kHandshakeRecord;
}

asio::awaitable<void> CarryToServer(std::shared_ptr<Relay> relay) {
  Buffer buffer;
  for (bool first = true;; first = false) {
    const Result<size_t> got = co_await Receive(*relay, buffer);
    if (!got.ok()) break;
    if (first && *got > 0 && SpeaksTls(buffer)) {
      relay->refused({ErrorCode::kProtocol,
                      "the peer speaks TLS, and this daemon has no certificate; give it tls-cert, "
                      "tls-key and tls-ca, or the peer none"});
      break;  // what gRPC has said, which is no TLS, goes out
    }
    const Status passed = co_await PassGuarded(*relay, ByteView(buffer).first(*got));
    if (passed.code() == ErrorCode::kUnavailable) co_return;
    if (!passed.ok()) {
      relay->refused(passed);
      relay->End();
      co_return;
    }
  }
  asio::error_code ignored;
  relay->server.shutdown(asio::socket_base::shutdown_send, ignored);
}

asio::awaitable<void> CarryToPeer(std::shared_ptr<Relay> relay) {
  Buffer buffer;
  while (true) {
    asio::error_code failed;
    const size_t bytes =
        co_await relay->server.async_read_some(asio::buffer(buffer), asio::redirect_error(asio::use_awaitable, failed));
    if (failed) break;
    relay->guard.FromServer(ByteView(buffer).first(bytes));
    const Status sent = co_await relay->peer.WriteAll(ByteView(buffer).first(bytes), kTakesNothing);
    if (!sent.ok()) break;
  }
  relay->End();
}

}  // namespace

void StartRelay(const std::shared_ptr<Relay>& relay) {
  const auto executor = relay->peer.socket().get_executor();
  net::Spawn(executor, CarryToServer(relay));
  net::Spawn(executor, CarryToPeer(relay));
}

}  // namespace lockstep::rpc

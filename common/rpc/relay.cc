#include "common/rpc/relay.h"

#include <array>
#include <memory>

#include "common/net/io_threads.h"

namespace lockstep::rpc {
namespace {

using Buffer = std::array<char, 16 << 10>;

asio::awaitable<void> CarryToServer(std::shared_ptr<Relay> relay) {
  Buffer buffer;
  asio::error_code failed;
  auto token = asio::redirect_error(asio::use_awaitable, failed);
  while (true) {
    const size_t bytes = co_await relay->peer.async_read_some(asio::buffer(buffer), token);
    if (failed) break;
    relay->unanswered += bytes;
    if (relay->unanswered > relay->most_unanswered) {
      relay->refused();
      relay->End();
      co_return;
    }
    co_await asio::async_write(relay->server, asio::buffer(buffer, bytes), token);
    if (failed) co_return;  // what gRPC said before it closed is still on its way
  }
  relay->server.shutdown(asio::socket_base::shutdown_send, failed);
}

asio::awaitable<void> CarryToPeer(std::shared_ptr<Relay> relay) {
  Buffer buffer;
  asio::error_code failed;
  auto token = asio::redirect_error(asio::use_awaitable, failed);
  while (!failed) {
    const size_t bytes = co_await relay->server.async_read_some(asio::buffer(buffer), token);
    if (failed) break;
    relay->unanswered = 0;
    co_await asio::async_write(relay->peer, asio::buffer(buffer, bytes), token);
  }
  relay->End();
}

}  // namespace

void StartRelay(const std::shared_ptr<Relay>& relay) {
  net::Spawn(relay->peer.get_executor(), CarryToServer(relay));
  net::Spawn(relay->peer.get_executor(), CarryToPeer(relay));
}

}  // namespace lockstep::rpc

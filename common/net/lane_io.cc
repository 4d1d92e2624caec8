#include "common/net/lane_io.h"

#include <asio/experimental/as_tuple.hpp>

#include "common/base/text.h"
#include "common/net/operation_timeout.h"
#include "common/os/deadline.h"

namespace lockstep::net {
namespace {

using asio::ip::tcp;
constexpr auto kAwait = asio::experimental::as_tuple(asio::use_awaitable);

// The outcome of an operation that `guard` watched over.
template <typename IoObject>
Status Outcome(const OperationTimeout<IoObject>& guard, const asio::error_code& error, std::string_view what) {
  if (error && guard.fired()) return {ErrorCode::kDeadline, Cat(what, ": not done in time")};
  return NetStatus(error, what);
}

}  // namespace

asio::awaitable<Status> UntilReady(tcp::socket& socket, tcp::socket::wait_type what, std::string_view doing,
                                   std::chrono::milliseconds timeout) {
  const OperationTimeout guard(socket, timeout);
  const auto [error] = co_await socket.async_wait(what, kAwait);
  co_return Outcome(guard, error, doing);
}

asio::awaitable<Status> Connect(tcp::socket& socket, const HostPort& address, std::chrono::milliseconds timeout) {
  const std::string what = Cat("connect to ", address.ToString());
  const os::Deadline deadline(timeout);
  tcp::resolver resolver(socket.get_executor());
  tcp::resolver::results_type endpoints;
  {
    const OperationTimeout guard(resolver, timeout);
    auto [error, found] = co_await resolver.async_resolve(address.host, std::to_string(address.port), kAwait);
    if (error) co_return Outcome(guard, error, what);
    endpoints = std::move(found);
  }
  const OperationTimeout guard(socket, deadline.Left());
  const auto [error, endpoint] = co_await asio::async_connect(socket, endpoints, kAwait);
  if (error) co_return Outcome(guard, error, what);
  asio::error_code ignored;  // only latency depends on it
  socket.set_option(tcp::no_delay(true), ignored);
  co_return OkStatus();
}

Status NetStatus(const asio::error_code& error, std::string_view what) {
  if (!error) return OkStatus();
  if (error == asio::error::operation_aborted) return {ErrorCode::kCancelled, Cat(what, ": cancelled")};
  if (error == asio::error::eof) return {ErrorCode::kUnavailable, Cat(what, ": peer closed")};
  if (error.category() == asio::error::get_system_category()) return ErrnoStatus(error.value(), what);
  return {ErrorCode::kUnavailable, Cat(what, ": ", error.message())};
}

}  // namespace lockstep::net

// StrandWakeup: where a coroutine waits until it is woken.
#pragma once

#include <asio.hpp>
#include <asio/experimental/as_tuple.hpp>
#include <utility>

namespace lockstep::net {

// Everything runs on the strand that it was made for; one coroutine waits.
class StrandWakeup {
 public:
  explicit StrandWakeup(const asio::any_io_executor& strand) : timer_(strand) {}

  asio::any_io_executor strand() { return timer_.get_executor(); }

  // Ends the wait in progress; without one, the next Wait.
  void Wake() {
    woken_ = true;
    timer_.cancel();
  }
  asio::awaitable<void> Wait() {
    if (!woken_) co_await WaitUntil(asio::steady_timer::time_point::max());
    woken_ = false;
  }
  // Until `time`, or a Wake before, which the next Wait will see too.
  asio::awaitable<void> WaitUntil(asio::steady_timer::time_point time) {
    timer_.expires_at(time);
    (void)co_await timer_.async_wait(asio::experimental::as_tuple(asio::use_awaitable));
  }

 private:
  asio::steady_timer timer_;
  bool woken_ = false;
};

}  // namespace lockstep::net

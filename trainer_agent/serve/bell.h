// Bell: wakes the coroutine of a lane from any thread, also when that lane, or the whole server, is long gone.
#pragma once

#include <asio.hpp>
#include <functional>
#include <memory>
#include <mutex>

namespace lockstep {

// Open as long as the threads that run lanes live; whoever owns those closes it.
class BellGate {
 public:
  void Close() {
    std::lock_guard lock(mutex_);
    open_ = false;
  }
  // `ring`, unless the gate is closed.
  template <typename Ring>
  void Pass(Ring ring) {
    std::lock_guard lock(mutex_);
    if (open_) ring();
  }

 private:
  std::mutex mutex_;
  bool open_ = true;
};

class Bell : public std::enable_shared_from_this<Bell> {
 public:
  // `strand`: of the lane. REQUIRES its context to outlive the gate's being open.
  Bell(asio::any_io_executor strand, std::shared_ptr<BellGate> gate) : timer_(strand), gate_(std::move(gate)) {}

  // What rings it; may be called by any thread, at any time, and returns at once.
  std::function<void()> Ringer() {
    return [gate = gate_, self = weak_from_this()] {
      gate->Pass([&] {
        const auto bell = self.lock();
        if (bell != nullptr) asio::post(bell->timer_.get_executor(), [bell] { bell->Ring(); });
      });
    };
  }
  // On the strand.
  void Ring() {
    rung_ = true;
    timer_.cancel();
  }
  // Until it was rung since the last call.
  asio::awaitable<void> Wait() {
    if (!rung_) {
      asio::error_code cancelled;
      timer_.expires_at(asio::steady_timer::time_point::max());
      co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    }
    rung_ = false;
  }

 private:
  asio::steady_timer timer_;
  const std::shared_ptr<BellGate> gate_;
  bool rung_ = false;
};

}  // namespace lockstep

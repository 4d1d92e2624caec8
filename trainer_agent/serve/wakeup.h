// Wakeup: wakes the coroutine of a lane from any thread, also when that lane, or the whole server, is long gone.
#pragma once

#include <asio.hpp>
#include <functional>
#include <memory>

#include "common/base/mutex.h"
#include "common/net/strand_wakeup.h"

namespace lockstep::serve {

// Open while the threads that run lanes live; their owner closes it.
class WakeupGate {
 public:
  void Close() {
    MutexLock lock(mutex_);
    open_ = false;
  }
  // Calls `wake`, unless the gate is closed.
  template <typename Wake>
  void Pass(Wake wake) {
    MutexLock lock(mutex_);
    if (open_) wake();
  }

 private:
  Mutex mutex_;
  bool open_ LS_GUARDED_BY(mutex_) = true;
};

class Wakeup : public net::StrandWakeup, public std::enable_shared_from_this<Wakeup> {
 public:
  // `strand`: of the lane. REQUIRES its context to outlive the gate's being open.
  Wakeup(const asio::any_io_executor& strand, std::shared_ptr<WakeupGate> gate)
      : StrandWakeup(strand), gate_(std::move(gate)) {}

  // Returns a function that wakes the coroutine. Any thread may call it at any time; it returns at once.
  std::function<void()> Waker() {
    return [gate = gate_, weak = weak_from_this()] {
      gate->Pass([&] {
        const auto self = weak.lock();
        if (self != nullptr) asio::post(self->strand(), [self] { self->Wake(); });
      });
    };
  }

 private:
  const std::shared_ptr<WakeupGate> gate_;
};

}  // namespace lockstep::serve

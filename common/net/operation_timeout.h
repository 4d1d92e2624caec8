// Cancels what is in progress on an I/O object when time is up: the deadline of lane_io.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <memory>
#include <string_view>

#include "common/base/status.h"

namespace lockstep::net {

// The timer's handler may be queued already when the operation ends, and outlive this object: it reads shared state,
// which the destructor disarms. REQUIRES the executor of `object` to be a strand.
template <typename IoObject>
class OperationTimeout {
 public:
  OperationTimeout(IoObject& object, std::chrono::milliseconds timeout)
      : timer_(object.get_executor(), timeout), state_(std::make_shared<State>(State{&object})) {
    timer_.async_wait([state = state_](const asio::error_code& error) {
      if (error || state->object == nullptr) return;
      state->fired = true;
      state->object->cancel();
    });
  }
  ~OperationTimeout() { state_->object = nullptr; }
  OperationTimeout(const OperationTimeout&) = delete;
  OperationTimeout& operator=(const OperationTimeout&) = delete;

  // Time was up before the operation that this guarded had ended.
  bool fired() const { return state_->fired; }

 private:
  struct State {
    IoObject* object;
    bool fired = false;
  };
  asio::steady_timer timer_;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::net

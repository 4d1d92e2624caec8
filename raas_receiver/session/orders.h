// Orders: what the service's threads want of a session's thread, in a queue, and how they wait for its answer. The
// session takes all of one kind that are there when it begins, and answers them together.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/text.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/session/change_signal.h"

namespace lockstep::session {

struct Order {
  enum Kind : uint8_t {
    kPull,      // a sync; its record is the answer
    kRollback,  // another version made current
  };
  Kind kind = kPull;
  bool force_full = false;  // of a pull
  std::promise<Result<v1::SyncRecord>> answer;
};

// Thread-safe.
class Orders {
 public:
  using Answer = Result<v1::SyncRecord>;
  // Says that the caller has gone, so that the answer is not waited for. Called now and then while waiting.
  using Cancelled = std::function<bool()>;

  // `changed` is notified of every order, and outlives this. `model` is for error messages.
  Orders(std::string model, ChangeSignal& changed) : model_(std::move(model)), changed_(changed) {}

  // --- the service's threads ---
  std::future<Answer> Post(Order::Kind kind, bool force_full = false);
  // kCancelled after Stop, or when `cancelled` says so; kDeadline after `timeout`. What was ordered is done all the
  // same then, unless the session stops.
  template <typename T>
  Result<T> Await(std::future<Result<T>> answer, std::chrono::milliseconds timeout, const Cancelled& cancelled) const;
  Answer Ask(Order::Kind kind, std::chrono::milliseconds timeout, const Cancelled& cancelled, bool force_full = false) {
    return Await(Post(kind, force_full), timeout, cancelled);
  }
  // The end of the session: what is in the queue, and what comes, is not done.
  void Stop();

  // --- the session's thread ---
  bool stopping() const;
  bool due(Order::Kind kind) const;
  // Those of that kind, which leave the queue. Every one is to be answered.
  std::vector<Order> Take(Order::Kind kind);
  // Those that were taken and are not done yet are in the queue again, before what came meanwhile.
  void PutBack(std::vector<Order> orders);

 private:
  // How often a waiting call asks whether its caller has gone.
  static constexpr std::chrono::milliseconds kCallerPoll{100};

  Status Stopped() const;

  const std::string model_;
  ChangeSignal& changed_;
  mutable Mutex mutex_;
  bool stopping_ LS_GUARDED_BY(mutex_) = false;
  std::vector<Order> queue_ LS_GUARDED_BY(mutex_);
};

template <typename T>
Result<T> Orders::Await(std::future<Result<T>> answer, std::chrono::milliseconds timeout,
                        const Cancelled& cancelled) const {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (answer.wait_for(std::min(timeout, kCallerPoll)) != std::future_status::ready) {
    if (stopping()) return Stopped();
    if (cancelled()) return Status(ErrorCode::kCancelled, "the caller has gone");
    if (std::chrono::steady_clock::now() >= until) {
      return Status(ErrorCode::kDeadline, Cat("model ", model_, ": not done within ", timeout.count(),
                                              " ms; it continues in the background"));
    }
  }
  return answer.get();
}

void AnswerAll(std::vector<Order> orders, const Orders::Answer& answer);

}  // namespace lockstep::session

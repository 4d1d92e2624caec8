// Orders: what the service's threads want of a session's thread, in a queue, and how they wait for its answer. The
// session takes all of one kind that are there when it begins, and answers them together.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/session/change_signal.h"

namespace lockstep::session {

struct Order {
  enum Kind : uint8_t {
    kPull,      // a sync; its record is the answer
    kRollback,  // another version made current
    kVerify,    // a comparison of engines' memory with the current version
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
  Answer Await(std::future<Answer> answer, std::chrono::milliseconds timeout, const Cancelled& cancelled) const;
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
  Status Stopped() const;

  const std::string model_;
  ChangeSignal& changed_;
  mutable Mutex mutex_;
  bool stopping_ LS_GUARDED_BY(mutex_) = false;
  std::vector<Order> queue_ LS_GUARDED_BY(mutex_);
};

void AnswerAll(std::vector<Order> orders, const Orders::Answer& answer);

}  // namespace lockstep::session

#include "raas_receiver/session/orders.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/text.h"

namespace lockstep::session {
std::future<Orders::Answer> Orders::Post(Order::Kind kind, bool force_full) {
  Order order{.kind = kind, .force_full = force_full, .answer = {}};
  std::future<Answer> answer = order.answer.get_future();
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      order.answer.set_value(Stopped());
    } else {
      queue_.push_back(std::move(order));
    }
  }
  changed_.Notify();
  return answer;
}

void Orders::Stop() {
  std::vector<Order> left;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    left.swap(queue_);
  }
  AnswerAll(std::move(left), Stopped());
  changed_.Notify();
}

Status Orders::Stopped() const {
  return {ErrorCode::kCancelled, Cat("model ", model_, ": the receiver stops")};
}

bool Orders::stopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

bool Orders::due(Order::Kind kind) const {
  MutexLock lock(mutex_);
  return std::ranges::any_of(queue_, [kind](const Order& order) { return order.kind == kind; });
}

std::vector<Order> Orders::Take(Order::Kind kind) {
  MutexLock lock(mutex_);
  const auto first =
      std::stable_partition(queue_.begin(), queue_.end(), [kind](const Order& order) { return order.kind != kind; });
  std::vector<Order> taken(std::make_move_iterator(first), std::make_move_iterator(queue_.end()));
  queue_.erase(first, queue_.end());
  return taken;
}

void Orders::PutBack(std::vector<Order> orders) {
  {
    MutexLock lock(mutex_);
    if (!stopping_) {
      queue_.insert(queue_.begin(), std::make_move_iterator(orders.begin()), std::make_move_iterator(orders.end()));
      return;
    }
  }
  AnswerAll(std::move(orders), Stopped());
}

void AnswerAll(std::vector<Order> orders, const Orders::Answer& answer) {
  for (Order& order : orders) order.answer.set_value(answer);
}

}  // namespace lockstep::session

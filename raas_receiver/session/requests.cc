#include "raas_receiver/session/requests.h"

#include <utility>

#include "common/base/text.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

// How often a waiting call checks whether its caller has gone.
constexpr milliseconds kCallerPoll{100};

}  // namespace

uint64_t Requests::Post(Kind kind, bool force_full) {
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = ++kinds_[kind].asked;
    kinds_[kind].force_full |= force_full;
  }
  changed_.Notify();
  return number;
}

Requests::Answer Requests::Await(Kind kind, uint64_t number, milliseconds timeout, const Cancelled& cancelled) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  std::optional<Answer> answer;
  const auto answered = [&] {
    answer = AnswerTo(kind, number);
    return answer.has_value();
  };
  while (!changed_.WaitFor(kCallerPoll, answered)) {
    if (cancelled()) return Status(ErrorCode::kCancelled, "the caller has gone");
    if (std::chrono::steady_clock::now() >= until) {
      return Status(ErrorCode::kDeadline, Cat("model ", model_, ": not done within ", timeout.count(),
                                              " ms; it continues in the background"));
    }
  }
  return *std::move(answer);
}

std::optional<Requests::Answer> Requests::AnswerTo(Kind kind, uint64_t number) const {
  std::lock_guard lock(mutex_);
  const Counted& counted = kinds_[kind];
  if (counted.done >= number) return counted.outcome.ok() ? Answer(counted.record) : Answer(counted.outcome);
  if (stopping_) return Status(ErrorCode::kCancelled, Cat("model ", model_, ": the receiver stops"));
  return std::nullopt;
}

void Requests::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.Notify();
}

bool Requests::stopping() const {
  std::lock_guard lock(mutex_);
  return stopping_;
}

bool Requests::due(Kind kind) const {
  std::lock_guard lock(mutex_);
  return kinds_[kind].asked != kinds_[kind].done;
}

bool Requests::due(Kind kind, const Turn& begun) const {
  std::lock_guard lock(mutex_);
  return kinds_[kind].asked != begun.number;
}

Requests::Turn Requests::Begin(Kind kind) {
  std::lock_guard lock(mutex_);
  return {kinds_[kind].asked, std::exchange(kinds_[kind].force_full, false)};
}

void Requests::End(Kind kind, const Turn& turn, const Status& outcome, const v1::SyncRecord& record) {
  {
    std::lock_guard lock(mutex_);
    kinds_[kind].done = turn.number;
    kinds_[kind].outcome = outcome;
    kinds_[kind].record = record;
  }
  changed_.Notify();
}

}  // namespace lockstep::session

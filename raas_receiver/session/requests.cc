#include "raas_receiver/session/requests.h"

#include <utility>

#include "common/base/text.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

// How often a waiting call checks whether its caller has gone.
constexpr milliseconds kCallerPoll{100};

}  // namespace

Requests::Answer Requests::Ask(Kind& kind, milliseconds timeout, const Cancelled& cancelled, bool force_full) {
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = ++kind.asked;
    force_full_ = force_full_ || force_full;
  }
  changed_.Notify();
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

std::optional<Requests::Answer> Requests::AnswerTo(const Kind& kind, uint64_t number) const {
  std::lock_guard lock(mutex_);
  if (kind.done >= number) return kind.outcome.ok() ? Answer(kind.record) : Answer(kind.outcome);
  if (stopping_) return Status(ErrorCode::kCancelled, Cat("model ", model_, ": the receiver stops"));
  return std::nullopt;
}

Result<v1::SyncRecord> Requests::Pull(bool force_full, milliseconds timeout, const Cancelled& cancelled) {
  return Ask(pull_, timeout, cancelled, force_full);
}

Status Requests::Rollback(milliseconds timeout, const Cancelled& cancelled) {
  return ToStatus(Ask(rollback_, timeout, cancelled));
}

Status Requests::Verify(milliseconds timeout, const Cancelled& cancelled) {
  return ToStatus(Ask(verify_, timeout, cancelled));
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

Requests::Pulls Requests::BeginPulls() {
  std::lock_guard lock(mutex_);
  return {pull_.asked, std::exchange(force_full_, false)};
}

void Requests::EndPulls(const Pulls& pulls, const Status& outcome, const v1::SyncRecord& record) {
  End(pull_, pulls.number, outcome, record);
}

void Requests::EndRollbacks(const Status& outcome) {
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = rollback_.asked;
  }
  End(rollback_, number, outcome);
}

uint64_t Requests::BeginVerifies() {
  std::lock_guard lock(mutex_);
  return verify_.asked;
}

void Requests::EndVerifies(uint64_t number, const Status& outcome) {
  End(verify_, number, outcome);
}

bool Requests::Due(const Kind& kind) const {
  std::lock_guard lock(mutex_);
  return kind.asked != kind.done;
}

void Requests::End(Kind& kind, uint64_t number, const Status& outcome, const v1::SyncRecord& record) {
  {
    std::lock_guard lock(mutex_);
    kind.done = number;
    kind.outcome = outcome;
    kind.record = record;
  }
  changed_.Notify();
}

}  // namespace lockstep::session

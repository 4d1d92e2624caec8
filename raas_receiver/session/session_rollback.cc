// What a session does that is asked for another version than it has: rollbacks.
#include <algorithm>
#include <iterator>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/session/session.h"

namespace lockstep::session {

Result<v1::ReceiverModel> Session::Rollback(const v1::RollbackRequest& request, const Orders::Cancelled& cancelled) {
  std::future<Orders::Answer> answer;
  {
    MutexLock lock(mutex_);
    LS_ASSIGN_OR_RETURN(const replica::Rollback chosen, Choose(request));
    if (rollback_ && *rollback_ != chosen) {
      return Status(ErrorCode::kState, Cat("model ", options_.model, ": a rollback to another version is under way"));
    }
    rollback_ = chosen;
    answer = orders_.Post(Order::kRollback);
    endable_.request_stop();
  }
  LS_RETURN_IF_ERROR(orders_.Await(std::move(answer), kEngineCallTime, cancelled));
  return Describe();
}

// What is asked for, by what is held and announced now: while it waits for its turn that may change, and the versions
// that were meant may not.
Result<replica::Rollback> Session::Choose(const v1::RollbackRequest& request) const {
  const VersionRef current = replicas_->current().held;
  const VersionRef other = Other().held;
  if (request.to_version() != 0 && request.not_version() != 0) {
    return Status(ErrorCode::kUsage, "a rollback to one version, or one that skips a version: not both");
  }
  replica::Rollback chosen{other};
  if (const Version to = request.to_version(); to != 0) {
    chosen = {to == current.version ? current : VersionRef{other.run, to}};
  } else if (const Version skip = request.not_version(); skip != 0) {
    const VersionRef newest = follower_.newest();
    const bool newer = newest.run != current.run || skip > current.version;
    if (skip != current.version && (skip > newest.version || !newer)) {
      return Status(ErrorCode::kState, Cat("model ", options_.model, ": version ", skip, " is neither held, which is ",
                                           current.version, ", nor a newer one that there is"));
    }
    chosen = {skip == current.version ? current : VersionRef{newest.run, skip}, /*skip=*/true};
  } else if (other.run == current.run && other.version >= current.version) {
    chosen = {};
  }
  LS_RETURN_IF_ERROR(CheckHeld(chosen));
  return chosen;
}

// What the other replica holds, unless a sync is about to write over it. REQUIRES mutex_, or the session's thread.
replica::PublishedVersion Session::Other() const {
  replica::PublishedVersion other = replicas_->previous();
  return other.held == given_up_ ? replica::PublishedVersion() : other;
}

// kState when the replicas do not hold what is to be current then.
Status Session::CheckHeld(const replica::Rollback& chosen) const {
  const VersionRef current = replicas_->current().held;
  const VersionRef other = Other().held;
  const bool stays = chosen.skip == (chosen.version != current);
  if (stays && !current.nothing()) return OkStatus();
  const bool damaged = Other().damaged;
  const bool there = !other.nothing() && !damaged;
  if (there && (chosen.skip || chosen.version == other)) return OkStatus();
  return {ErrorCode::kState,
          Cat("model ", options_.model, ": the other replica holds no whole version ",
              chosen.skip || chosen.version.nothing() ? Cat("before ", current.version) : Cat(chosen.version.version),
              other.nothing() ? "" : Cat(", but ", other.version, damaged ? ", damaged" : ""),
              "; nothing to roll back to")};
}

// The orders are answered once engines have ended their attempts at the version, or are late with it.
bool Session::RollBack() {
  if (!orders_.due(Order::kRollback)) return false;
  replica::Rollback chosen;
  {
    MutexLock lock(mutex_);
    chosen = *rollback_;
  }
  const VersionRef before = replicas_->current().held;
  const Status status = Return(chosen);
  const bool other = replicas_->current().held != before;
  if (other) {
    Answer();  // its version is not the next that engines get
    ++number_;
    mode_ = "rollback";
    transfer_ = 0;
  }
  state_ = Resting();
  std::vector<Order> orders;  // also those that came while it ran: they asked for the same
  {
    MutexLock lock(mutex_);
    orders = orders_.Take(Order::kRollback);
    rollback_.reset();
  }
  if (!status.ok()) {
    AnswerAll(std::move(orders), status);
  } else if (other) {
    unanswered_ = Unanswered{.orders = std::move(orders),
                             .rollback = true,
                             .status = {},
                             .record = {},
                             .number = number_,
                             .waiting = engines_.Waiting()};
    (void)GiveEngines();
  } else if (unanswered_ && unanswered_->rollback) {
    std::ranges::move(orders, std::back_inserter(unanswered_->orders));
  } else {
    AnswerAll(std::move(orders), v1::SyncRecord());
  }
  return true;
}

Status Session::Return(const replica::Rollback& chosen) {
  LS_RETURN_IF_ERROR(CheckHeld(chosen));
  const VersionRef before = replicas_->current().held;
  LS_RETURN_IF_ERROR(replicas_->RollBack(chosen));
  const VersionRef now = replicas_->current().held;
  sync_again_ = {};
  if (in_step_) ToArchive();
  origin_->Follow({}, stop_.get_token());
  // They would lead on at once.
  AnswerAll(orders_.Take(Order::kPull),
            Status(ErrorCode::kCancelled, Cat("model ", options_.model, ": a rollback came meanwhile; pull again")));
  telemetry::Log(telemetry::LogLevel::kWarn, "version_rolled_back",
                 {{"model", options_.model},
                  {"run", ToHex(now.run)},
                  {"version", now.version},
                  {"from", before.version},
                  {"skips", chosen.skip ? chosen.version.version : 0}});
  return OkStatus();
}

}  // namespace lockstep::session

// In place: the ranks of an engine write their own memory, while their server, where one is named, is paused.
#include <algorithm>
#include <atomic>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "raas_receiver/session/engine_route.h"
#include "raas_receiver/targets/rank_connection.h"

namespace lockstep::session {
namespace {

class InPlaceRoute final : public EngineRoute {
 public:
  InPlaceRoute(const EngineContext& context, engines::EngineDriver& driver, targets::EngineTargets& targets)
      : context_(context), driver_(driver), targets_(targets), owes_resume_(driver.controls_server()) {}

  // What all of its ranks are wholly at. Of a server that is paused, what it was at before: what was written since it
  // serves once it is resumed.
  VersionRef served() const override {
    if (!owes_resume_) return AtInMemory();
    if (targets_.lost()) return {};
    MutexLock lock(mutex_);
    return paused_at_;
  }

  Status Trouble() const override { return OkStatus(); }
  bool Behind(const VersionRef& current) const override {
    return targets_.Behind(current) || (owes_resume_ && targets_.AllAt(current));
  }
  bool Paused() const override { return prepared_; }
  bool AttemptReadsBefore() const override { return !prepared_; }
  bool RanksRead(const VersionRef& previous) const override { return targets_.Reads(previous); }

  EngineOutcome Serve(const EngineAttempt& attempt) override {
    EngineOutcome outcome;
    const telemetry::Moment begun;
    outcome.status = Prepare(attempt);
    outcome.prepare_us = begun.MicrosSince();
    if (!targets_.prepared()) {
      const bool whole = owes_resume_ && targets_.AllAt(attempt.current.version.held);
      if (outcome.status.ok() && whole) outcome.status = PausedAndResumed(attempt.current.version);
      return outcome;
    }
    if (IsDamaged(attempt.current.version.held)) {
      targets_.Abandon();
      outcome.status = {ErrorCode::kState, Cat("version ", attempt.current.version.held.version, " was found damaged")};
      return outcome;
    }
    const telemetry::Moment pause;
    const Status written = WritePaused(attempt);
    outcome.pause_us = pause.MicrosSince();
    if (outcome.status.ok()) outcome.status = written;
    for (const targets::EngineReport& engine : targets_.Describe()) outcome.written_bytes += engine.last_written_bytes;
    return outcome;
  }

  Result<bool> Check() override {
    LS_RETURN_IF_ERROR(driver_.Answers());
    return true;
  }

  Result<size_t> Verify() override {
    const replica::PublishedVersion current = context_.replicas.current();
    if (targets_.empty()) return 0;
    LS_RETURN_IF_ERROR(CheckComparable(current));
    return targets_.Verify({current.held, current.layout, context_.replicas.current_data()});
  }

  void Took(const EngineOutcome&) override {
    {
      MutexLock lock(mutex_);
      paused_at_ = {};
    }
    prepared_ = false;
  }

  // Whatever it was written from: deltas lead on from what was wrong.
  void Doubt(const VersionRef&) override { targets_.Doubt(); }

 private:
  VersionRef AtInMemory() const {
    const std::vector<targets::EngineReport> groups = targets_.Describe();
    if (groups.empty()) return {};
    const VersionRef first = groups.front().at;
    return std::ranges::all_of(groups, [&](const auto& group) { return group.at == first; }) ? first : VersionRef();
  }

  bool IsDamaged(const VersionRef& held) const {
    const auto is = [&](const replica::PublishedVersion& version) { return version.held == held && version.damaged; };
    return is(context_.replicas.current()) || is(context_.replicas.previous());
  }

  Status Prepare(const EngineAttempt& attempt) {
    std::optional<targets::TargetVersion> before;
    if (attempt.before) before = attempt.before->data;
    Status status = targets_.Prepare(
        attempt.current.data, before,
        [this](const VersionRef& from, const VersionRef& to) { return context_.replicas.DeltasBetween(from, to); });
    prepared_ = true;
    context_.changed.Notify();
    return status;
  }

  // Memory is whole, and the server may stand still all the same: a receiver ended, or failed, between the two.
  Status PausedAndResumed(const engines::EngineVersion& version) {
    LS_RETURN_IF_ERROR(driver_.Pause(version));
    return Resume(version);
  }

  // The pause. A server resumes only when all ranks of all engines are there, and at one version; it stays paused else,
  // until the next attempt.
  Status WritePaused(const EngineAttempt& attempt) {
    const engines::EngineVersion& version = attempt.current.version;
    engines::EngineVersion before = attempt.before ? attempt.before->version : version;
    before.mode = "resumed";
    {
      const VersionRef at = served();
      MutexLock lock(mutex_);
      paused_at_ = at;
    }
    // A server that lacks a rank may never answer.
    const std::vector<std::shared_ptr<targets::RankConnection>> ranks = targets_.members();
    std::vector<int> hang_ups;
    for (const auto& rank : ranks) hang_ups.push_back(rank->fd());
    driver_.CancelAtHangUp(std::move(hang_ups));
    const Status written = WriteWhilePaused(version, before);
    driver_.CancelAtHangUp({});
    return written;
  }

  Status WriteWhilePaused(const engines::EngineVersion& version, const engines::EngineVersion& before) {
    owes_resume_ = driver_.controls_server();
    const Status gone(ErrorCode::kUnavailable, "its connection ended");
    if (const Status paused = targets_.lost() ? gone : driver_.Pause(version); !paused.ok()) {
      const bool lost = targets_.lost();
      targets_.Abandon();
      if (!lost) return paused;
      return {ErrorCode::kAborted, Cat("a rank went before its server was paused: ", paused.message())};
    }
    const Status written = targets_.Commit();
    if (targets_.AllAt(version.held)) {
      const Status resumed = Resume(version);
      return written.ok() ? resumed : written;
    }
    const Status resumed = targets_.AllAt(before.held) ? Resume(before) : OkStatus();
    if (!written.ok()) return resumed.ok() || !driver_.controls_server() ? written : resumed;
    return {ErrorCode::kState, Cat("not every engine is at version ", version.held.version, " yet")};
  }

  Status Resume(const engines::EngineVersion& serving) {
    LS_RETURN_IF_ERROR(driver_.Resume(serving));
    owes_resume_ = false;
    return OkStatus();
  }

  const EngineContext& context_;
  engines::EngineDriver& driver_;
  targets::EngineTargets& targets_;
  std::atomic<bool> prepared_ = false;  // the attempt under way has worked out its writes
  // The server may be paused, by us or by a receiver before us, and is to resume once its memory is whole.
  std::atomic<bool> owes_resume_;
  mutable Mutex mutex_;
  VersionRef paused_at_ LS_GUARDED_BY(mutex_);  // what it was at when it was paused; nothing once that attempt is taken
};

}  // namespace

std::unique_ptr<EngineRoute> NewInPlaceRoute(const EngineContext& context, engines::EngineDriver& driver,
                                             targets::EngineTargets& targets) {
  return std::make_unique<InPlaceRoute>(context, driver, targets);
}

}  // namespace lockstep::session

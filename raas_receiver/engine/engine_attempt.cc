// An attempt of an engine: serving what it was given, and what follows from how that went.
#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "raas_receiver/engine/engine.h"

namespace lockstep::engine {
namespace {

// Between looks whether the engine's receivers on other hosts have come as far.
constexpr std::chrono::milliseconds kBetweenLooks{20};
// After a pause in vain readers have so many times its duration.
constexpr int kReadingPerPause = 4;

}  // namespace

void Engine::Serve() {
  std::optional<EngineAttempt> with;
  {
    MutexLock lock(mutex_);
    with = attempt_->with;
    if (with->number != tried_ && !late()) backoff_.Reset();
    tried_ = with->number;
    answers_ = false;
  }
  const VersionRef& held = with->current.version.held;
  EngineOutcome outcome;
  {
    telemetry::SpanScope span(context_.timeline, {.name = "engine",
                                                  .model = context_.model,
                                                  .run = held.run,
                                                  .version = held.version,
                                                  .transfer = with->transfer});
    const telemetry::Moment begun;
    outcome = in_place() ? WriteRanks(*with) : Load(*with);
    outcome.version = held;
    outcome.number = with->number;
    outcome.total_us = begun.MicrosSince();
    span.span().bytes = outcome.written_bytes;
  }
  Take(std::move(outcome));
  context_.changed();
}

void Engine::Take(EngineOutcome outcome) {
  {
    MutexLock lock(mutex_);
    const bool counted = driver_->failures() > attempt_->failures;
    outcome.status = Explain(std::move(outcome.status), *attempt_);
    const bool failed = !outcome.status.ok() && outcome.status.code() != ErrorCode::kCancelled;
    if (in_place() && failed && !counted && !ranks_.apart()) ++failures_;
    paused_at_ = {};
    state_ = State::kResting;
  }
  if (!in_place()) {
    SetLoaded(outcome.served);
    if (outcome.status.ok() || outcome.reverted) (void)Believe(true);
    if (outcome.status.code() == ErrorCode::kUnavailable) TakeSilence(outcome.status);
  }
  TakeDoubts(/*attempt_ended=*/true);
  const replica::PublishedVersion current = context_.replicas.current();
  outcome.doubted = outcome.status.ok() && current.held == outcome.version && (current.damaged || Behind());
  failed_ = !outcome.status.ok();
  if (outcome.status.ok()) behind_ = Clock::time_point();
  MutexLock lock(mutex_);
  const VersionRef served = Served();
  SetNextTry(outcome);
  if (!cancelled_) driver_->Reset();  // by whatever it was cancelled
  attempt_.reset();
  taken_back_ = true;  // a sync that waited for the end goes first
  last_error_ = outcome.status.ok() ? std::string() : outcome.status.ToString();
  last_error_unix_ns_ = outcome.status.ok() ? 0 : telemetry::UnixNanos();
  if (outcome.status.ok()) last_pause_us_ = in_place() ? outcome.pause_us : outcome.total_us;
  if (outcome.status.ok()) last_written_bytes_ = outcome.written_bytes;
  if (std::exchange(last_served_, served) != served) served_since_unix_ns_ = telemetry::UnixNanos();
  outcome_ = std::move(outcome);
}

void Engine::SetNextTry(const EngineOutcome& outcome) {
  if (outcome.status.ok()) {
    backoff_.Reset();
    serve_again_ = {};
    return;
  }
  if (ranks_.apart() == Agreement::kNotYet && outcome.pause_us == 0) {
    serve_again_ = Clock::now() + kBetweenLooks;
    return;
  }
  // A server that does not answer is given it as soon as it does. Each attempt pauses one again that serves the version
  // before.
  serve_again_ =
      !silence_.ok() ? Clock::time_point() : Clock::now() + (outcome.reverted ? kLongestWait : backoff_.Next());
  if (!in_place() || over_http()) return;
  const auto rest = kReadingPerPause * std::chrono::microseconds(outcome.pause_us);
  pause_again_ = Clock::now() + std::min<std::chrono::microseconds>(rest, kLongestWait);
}

Status Engine::Explain(Status status, const Attempt& attempt) const {
  if (!attempt.gave_way || status.code() != ErrorCode::kCancelled) return status;
  return {ErrorCode::kDeadline,
          Cat("engine ", driver_->label(), ": version ", attempt.with.current.version.held.version,
              " was not served within ", std::chrono::duration<double>(config_.late_after).count(),
              " s (--engine-late-after), and a newer version waited")};
}

}  // namespace lockstep::engine

#include "raas_receiver/session/engine.h"

#include <algorithm>
#include <future>
#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/origin/version_ref_proto.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kIdle{3'600'000};
// How often a server that can be asked is asked whether it still serves what it was given, or whether it is there
// again.
constexpr milliseconds kCheck{1'000};
// Between loads because it did not, although it answered all the time: a server that keeps changing its mind is not to
// load without end.
constexpr milliseconds kBetweenLosses{60'000};
// Waits between loads that fail.
constexpr milliseconds kFirstWait{1'000};
constexpr milliseconds kLongestWait{60'000};
constexpr int kMostUnusedNamed = 16;
// After a pause in vain readers have so many times its duration.
constexpr int kReadingPerPause = 4;

void Fill(const targets::EngineReport& report, v1::RankGroup& proto) {
  proto.set_name(report.engine);
  proto.set_world(report.world);
  proto.set_attached(report.attached);
  *proto.mutable_serving() = origin::ToProto(report.serving());
  proto.set_waiting(report.waiting);
  proto.set_asleep(report.asleep);
  proto.set_comparing(report.comparing);
  proto.set_parameters(report.parameters);
  proto.set_target_bytes(report.target_bytes);
  proto.set_last_prepare_us(static_cast<uint64_t>(report.last_prepare.count()));
  proto.set_last_pause_us(static_cast<uint64_t>(report.last_pause.count()));
  proto.set_last_written_bytes(report.last_written_bytes);
  proto.set_commits(report.commits);
  proto.set_failures(report.failures);
  proto.set_last_error(report.last_error);
  proto.set_unused(static_cast<uint32_t>(report.unused.size()));
  for (const std::string& name : report.unused) {
    if (proto.unused_tensors_size() == kMostUnusedNamed) break;
    proto.add_unused_tensors(name);
  }
}

milliseconds Until(std::chrono::steady_clock::time_point when) {
  return std::chrono::ceil<milliseconds>(when - std::chrono::steady_clock::now());
}

}  // namespace

Engine::Engine(const EngineContext& context, EngineConfig config, std::unique_ptr<engines::EngineDriver> driver)
    : context_(context),
      config_(std::move(config)),
      driver_(std::move(driver)),
      backoff_(in_place() ? Backoff() : Backoff(kLongestWait, kFirstWait)),
      targets_(TargetsOptions()),
      route_(in_place() ? NewInPlaceRoute(context_, *driver_, targets_)
                        : NewDirectoryRoute(context_, config_, *driver_, targets_)) {
  const auto changed = [this] {
    ranks_changed_ = true;
    context_.changed.Notify();
  };
  targets_.SetChanged(changed, /*lost=*/changed);
}

targets::EngineTargetsOptions Engine::TargetsOptions() {
  targets::EngineTargetsOptions options = config_.targets;
  options.model = context_.model;
  options.engine = config_.name;
  options.threads = context_.engine_threads;
  options.compare_only = !in_place();
  if (over_http()) options.paused_server = [this] { return driver_->Incarnations(); };
  return options;
}

std::string Engine::LateAttempt() const {
  MutexLock lock(mutex_);
  if (!attempt_ || attempt_->outcome || config_.late_after.count() == 0) return {};
  const auto lasts = Clock::now() - attempt_->begun;
  if (lasts < config_.late_after) return {};
  const std::string engine = in_place() && !over_http() ? "ranks in place" : "engine " + driver_->label();
  return Cat(engine, ": version ", attempt_->with.current.version.held.version, " is not served after ",
             std::chrono::floor<std::chrono::seconds>(lasts).count(), " s");
}

v1::EngineState Engine::State(const std::vector<targets::EngineReport>& groups, const VersionRef& served,
                              bool failing) const {
  if (attempt_ && !attempt_->outcome) {
    if (!in_place()) return v1::ENGINE_STATE_LOADING;
    return route_->Paused() ? v1::ENGINE_STATE_WRITING : v1::ENGINE_STATE_PREPARING;
  }
  if (failing) return v1::ENGINE_STATE_FAILING;
  if (std::ranges::any_of(groups, [](const auto& group) { return group.asleep > 0; })) return v1::ENGINE_STATE_ASLEEP;
  return served.nothing() ? v1::ENGINE_STATE_WAITING : v1::ENGINE_STATE_SERVING;
}

std::string Engine::error() const {
  const Status trouble = route_->Trouble();
  MutexLock lock(mutex_);
  return last_error_.empty() && !trouble.ok() ? trouble.ToString() : last_error_;
}

void Engine::Describe(v1::ReceiverModel& model, bool counts) const {
  const std::vector<targets::EngineReport> groups = targets_.Describe();
  for (const targets::EngineReport& group : groups) {
    v1::RankGroup& proto = *model.add_rank_groups();
    Fill(group, proto);
    proto.set_engine(name());
  }
  const uint64_t failures = driver_->failures() + failures_;
  model.set_engine_failures(model.engine_failures() + failures);
  v1::Engine& engine = *model.add_engines();
  engine.set_name(name());
  engine.set_kind(std::string(driver_->kind()));
  engine.set_url(driver_->where());
  engine.set_in_place(in_place());
  engine.set_late(late());
  const VersionRef served = this->served();
  const bool lacks = in_place() && (counts || made()) && !context_.replicas.current().held.nothing();
  const auto absence = lacks ? targets_.absence() : std::nullopt;
  const std::string error = this->error();
  const std::string last_error = !absence ? error : error.empty() ? absence->text : Cat(error, "; ", absence->text);
  *engine.mutable_served() = origin::ToProto(served);
  engine.set_failures(failures);
  MutexLock lock(mutex_);
  const int64_t since = absence ? absence->since_unix_ns : silent_since_ns_.load();
  const int64_t last_error_unix_ns = last_error_.empty() ? since : last_error_unix_ns_;
  engine.set_state(State(groups, served, !error.empty()));
  engine.set_served_since_unix_ns(served_since_unix_ns_);
  engine.set_last_pause_us(last_pause_us_);
  engine.set_last_written_bytes(last_written_bytes_);
  engine.set_last_error(last_error);
  engine.set_last_error_unix_ns(last_error_unix_ns);
  const bool ended = absence && !counts;  // it may have ended for good
  if (!last_error.empty() && !ended && last_error_unix_ns > model.last_error_unix_ns()) {
    model.set_last_error(last_error);
    model.set_last_error_unix_ns(last_error_unix_ns);
  }
}

VersionRef Engine::served() const {
  {
    MutexLock lock(mutex_);
    if (in_place() && attempt_ && !attempt_->damaged.empty()) return {};
  }
  return route_->served();
}

bool Engine::Behind() const {
  const replica::PublishedVersion current = context_.replicas.current();
  return !current.held.nothing() && !current.damaged && route_->Behind(current.held);
}

// Never: it is not behind, or may be.
Engine::Clock::time_point Engine::LateAt() const {
  const Clock::time_point since = behind_;
  const bool never = since == Clock::time_point() || config_.late_after.count() == 0;
  return never ? Clock::time_point::max() : since + config_.late_after;
}

bool Engine::Due() const {
  if (under_way()) return ended();
  if (asking_ || retired_ || Rests() || !Behind()) return false;
  if (!late() && context_.replicas.current().held != tried_) return true;
  const bool answers_first = over_http() && (late() || Silent());
  return Clock::now() >= serve_again_ && (!answers_first || answers_);
}

milliseconds Engine::UntilDue() const {
  milliseconds idle = kIdle;
  const auto sooner = [&](milliseconds left) {
    if (left.count() > 0) idle = std::min(idle, left);
  };
  if (LateAt() != Clock::time_point::max()) sooner(Until(LateAt()));
  if (under_way()) return idle;
  sooner(Until(check_again_));
  sooner(Until(serve_again_));
  sooner(Until(pause_again_));
  sooner(Until(targets_.ranks_back_by()));
  return idle;
}

// Ranks that read the version before, and cannot be written because one of theirs is missing, are behind, too; as is
// what failed, such as ranks that are refused, until it works.
void Engine::Track() {
  const replica::PublishedVersion current = context_.replicas.current();
  if (current.damaged) return;                           // there is nothing that it could take
  if (failed_ && current.held != tried_ && !Behind()) {  // a rollback to what it serves
    failed_ = false;
    MutexLock lock(mutex_);
    last_error_.clear();
  }
  const bool behind = failed_ || Behind() || RanksReadPrevious();
  const bool was = behind_.load() != Clock::time_point();
  if (behind && !was) behind_ = Clock::now();
  if (!behind && was && !under_way()) behind_ = Clock::time_point();
}

void Engine::Check() {
  Track();
  // A server that lacks a rank may never answer.
  if (in_place() && over_http() && targets_.lost()) CancelAttempt(/*gives_way=*/false);
  if (under_way() || asking_) return;  // the driver is the thread's
  if (lost_.exchange(false)) {
    serve_again_ = load_again_;
    load_again_ = Clock::now() + kBetweenLosses;
  }
  const bool asks = over_http() && (!in_place() || (late() && Behind())) && Clock::now() >= check_again_;
  if (!asks && (in_place() || !ranks_changed_.exchange(false))) return;
  check_again_ = Clock::now() + kCheck;
  asking_ = true;
  thread_.Post([this] { Ask(); });
}

// On the engine's thread.
void Engine::Ask() {
  const bool silent = Silent();
  const Result<bool> serves = route_->Check();
  if (!silent && Silent()) silent_since_ns_ = telemetry::UnixNanos();
  answers_ = serves.ok();
  lost_ = serves.ok() && !*serves && !silent;
  asking_ = false;
  context_.changed.Notify();
}

EngineVersions Engine::VersionsOf(const replica::PublishedVersion& version, std::span<const std::byte> data,
                                  const std::string& mode) const {
  return {{context_.model, version.held, version.path, mode, version.label},
          {version.held, version.layout, data, version.label}};
}

void Engine::Begin(const std::string& mode, uint64_t transfer) {
  const replica::ReplicaPair& replicas = context_.replicas;
  EngineAttempt with{.current = VersionsOf(replicas.current(), replicas.current_data(), mode), .transfer = transfer};
  const replica::PublishedVersion previous = replicas.previous();
  if (!previous.held.nothing() && !previous.damaged)
    with.before = VersionsOf(previous, replicas.previous_data(), "last_good");
  if (with.current.version.held != tried_ && !late()) backoff_.Reset();
  tried_ = with.current.version.held;
  Track();
  answers_ = false;
  {
    MutexLock lock(mutex_);
    attempt_ = Attempt{.with = with, .failures = driver_->failures()};
  }
  thread_.Post([this, with = std::move(with)] { Run(with); });
}

// On the engine's thread, which has nothing but the attempt, the driver and the ranks.
void Engine::Run(const EngineAttempt& attempt) {
  EngineOutcome outcome;
  const VersionRef& held = attempt.current.version.held;
  {
    telemetry::SpanScope span(context_.timeline, {.name = "engine",
                                                  .model = context_.model,
                                                  .run = held.run,
                                                  .version = held.version,
                                                  .transfer = attempt.transfer});
    const telemetry::Moment begun;
    outcome = route_->Serve(attempt);
    outcome.version = held;
    outcome.total_us = begun.MicrosSince();
    span.span().bytes = outcome.written_bytes;
  }
  {
    MutexLock lock(mutex_);
    attempt_->outcome = std::move(outcome);
  }
  context_.changed.Notify();
}

bool Engine::under_way() const {
  MutexLock lock(mutex_);
  return attempt_.has_value();
}

bool Engine::ended() const {
  MutexLock lock(mutex_);
  return attempt_ && attempt_->outcome;
}

bool Engine::RanksReadPrevious() const {
  const replica::PublishedVersion previous = context_.replicas.previous();
  return !previous.held.nothing() && !previous.damaged && previous.held != context_.replicas.current().held &&
         route_->RanksRead(previous.held);
}

bool Engine::ReadsPrevious() const {
  const replica::PublishedVersion previous = context_.replicas.previous();
  if (previous.held.nothing()) return false;
  {
    MutexLock lock(mutex_);
    if (attempt_) {
      if (attempt_->with.current.version.path == previous.path) return true;
      const std::optional<EngineVersions>& before = attempt_->with.before;
      if (before && before->version.path == previous.path && route_->AttemptReadsBefore()) return true;
    }
  }
  // Ranks are given nothing while the current version is damaged: its repair does not wait for them.
  return !late() && !context_.replicas.current().damaged && RanksReadPrevious();
}

void Engine::AwaitEnd() {
  while (!context_.changed.WaitFor(kIdle, [this] { return ended(); })) {
  }
}

void Engine::Cancel() {
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
  }
  driver_->Cancel();
}

void Engine::GiveWay() {
  if (late()) CancelAttempt(/*gives_way=*/true);
}

void Engine::CancelAttempt(bool gives_way) {
  {
    MutexLock lock(mutex_);
    if (!attempt_ || attempt_->outcome || std::exchange(attempt_->cancelled, true)) return;
    attempt_->gave_way = gives_way;
  }
  driver_->Cancel();
}

bool Engine::MayGiveWay() const {
  {
    MutexLock lock(mutex_);
    if (!attempt_ || attempt_->outcome || attempt_->cancelled) return false;
  }
  return late() && ReadsPrevious();
}

void Engine::Retire() {
  retired_ = true;
  Cancel();
}

Status Engine::Explain(Status status, const Attempt& attempt) const {
  if (!attempt.gave_way || status.code() != ErrorCode::kCancelled) return status;
  return {ErrorCode::kDeadline,
          Cat("engine ", driver_->label(), ": version ", attempt.with.current.version.held.version,
              " was not served within ", std::chrono::duration<double>(config_.late_after).count(),
              " s (--engine-late-after), and a newer version waited")};
}

EngineOutcome Engine::Take() {
  AwaitEnd();
  EngineOutcome outcome;
  std::vector<VersionRef> damaged;
  bool counted = false;  // by the driver
  {
    MutexLock lock(mutex_);
    counted = driver_->failures() > attempt_->failures;
    outcome = *std::move(attempt_->outcome);
    damaged = std::move(attempt_->damaged);
    outcome.status = Explain(std::move(outcome.status), *attempt_);
    if (attempt_->cancelled && !cancelled_) driver_->Reset();
    attempt_.reset();
    last_error_ = outcome.status.ok() ? std::string() : outcome.status.ToString();
    last_error_unix_ns_ = outcome.status.ok() ? 0 : telemetry::UnixNanos();
  }
  route_->Took(outcome);
  for (const VersionRef& held : damaged) route_->Doubt(held);
  const replica::PublishedVersion current = context_.replicas.current();
  outcome.doubted = outcome.status.ok() && current.held == outcome.version && (current.damaged || Behind());
  const VersionRef served = this->served();
  {
    MutexLock lock(mutex_);
    if (outcome.status.ok()) last_pause_us_ = in_place() ? outcome.pause_us : outcome.total_us;
    if (outcome.status.ok()) last_written_bytes_ = outcome.written_bytes;
    if (std::exchange(last_served_, served) != served) served_since_unix_ns_ = telemetry::UnixNanos();
  }
  failed_ = !outcome.status.ok();
  if (failed_ && in_place()) TakeFailure(outcome, counted);
  if (outcome.status.ok()) {
    backoff_.Reset();
    serve_again_ = {};
    behind_ = Clock::time_point();
  } else if (Silent()) {
    serve_again_ = {};  // as soon as it answers
  } else {
    // Each attempt pauses a server that serves the version before again.
    serve_again_ = Clock::now() + (outcome.reverted ? kLongestWait : backoff_.Next());
  }
  return outcome;
}

void Engine::TakeFailure(const EngineOutcome& outcome, bool counted) {
  if (!counted && outcome.status.code() != ErrorCode::kCancelled) ++failures_;
  if (over_http()) return;
  const auto rest = kReadingPerPause * std::chrono::microseconds(outcome.pause_us);
  pause_again_ = Clock::now() + std::min<std::chrono::microseconds>(rest, kLongestWait);
}

void Engine::OnThread(const std::function<void()>& task) {
  std::promise<void> done;
  thread_.Post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

Result<size_t> Engine::Verify() {
  std::optional<Result<size_t>> verified;
  OnThread([&] { verified = route_->Verify(); });
  return *verified;
}

void Engine::Doubt(const VersionRef& damaged) {
  bool under_way = false;
  bool given = false;  // what is damaged
  {
    MutexLock lock(mutex_);
    under_way = attempt_.has_value();
    given = under_way && attempt_->with.current.version.held == damaged;
    if (under_way) attempt_->damaged.push_back(damaged);
  }
  if (given) CancelAttempt(/*gives_way=*/false);
  if (!under_way) route_->Doubt(damaged);
}

}  // namespace lockstep::session

#include "raas_receiver/session/engine.h"

#include <algorithm>
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
  targets_.SetChanged([this] {
    ranks_changed_ = true;
    context_.changed.Notify();
  });
  thread_ = std::thread([this] { Loop(); });
}

Engine::~Engine() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
  }
  targets_.Wake();
  thread_.join();
  for (auto& wanted : compares_) wanted.set_value(Status(ErrorCode::kCancelled, "the engine ends"));
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
  if (!attempt_ || config_.late_after.count() == 0) return {};
  const auto lasts = Clock::now() - attempt_->begun;
  if (lasts < config_.late_after) return {};
  const std::string engine = in_place() && !over_http() ? "ranks in place" : "engine " + driver_->label();
  return Cat(engine, ": version ", attempt_->with.current.version.held.version, " is not served after ",
             std::chrono::floor<std::chrono::seconds>(lasts).count(), " s");
}

v1::EngineState Engine::State(const std::vector<targets::EngineReport>& groups, const VersionRef& served,
                              bool failing) const {
  if (attempt_) {
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
    if (doubted_) return {};
  }
  return route_->served();
}

bool Engine::Behind() const {
  const replica::PublishedVersion current = context_.replicas.current();
  return !current.held.nothing() && !current.damaged && route_->Behind(current.held);
}

Engine::Clock::time_point Engine::NextChange() const {
  const auto now = Clock::now();
  auto next = Clock::time_point::max();
  for (const auto at : {LateAt(), targets_.ranks_back_by()}) {
    if (at > now) next = std::min(next, at);
  }
  return next;
}

// Never: it is not behind, or may be.
Engine::Clock::time_point Engine::LateAt() const {
  const Clock::time_point since = behind_;
  const bool never = since == Clock::time_point() || config_.late_after.count() == 0;
  return never ? Clock::time_point::max() : since + config_.late_after;
}

// --- what it is told ---

std::optional<EngineAttempt> WhatToGive(const EngineContext& context, uint64_t number, const std::string& mode,
                                        uint64_t transfer, bool at_once) {
  const replica::PublishedVersion current = context.replicas.current();
  const replica::PublishedVersion previous = context.replicas.previous();
  if (current.held.nothing() || current.damaged) return std::nullopt;
  const auto versions = [&](const replica::PublishedVersion& version, std::span<const std::byte> data,
                            const std::string& how) -> EngineVersions {
    return {{context.model, version.held, version.path, how, version.label},
            {version.held, version.layout, data, version.label}};
  };
  EngineAttempt given{.number = number,
                      .at_once = at_once,
                      .current = versions(current, context.replicas.current_data(), mode),
                      .before = {},
                      .transfer = transfer};
  if (!previous.held.nothing() && !previous.damaged) {
    given.before = versions(previous, context.replicas.previous_data(), "last_good");
  }
  return given;
}

void Engine::Give(const std::optional<EngineAttempt>& given) {
  {
    MutexLock lock(mutex_);
    const auto same = [&](const EngineAttempt& now) {
      return now.number == given->number && now.before.has_value() == given->before.has_value() &&
             (!now.before || now.before->version.held == given->before->version.held);
    };
    if (!std::exchange(taken_back_, false) && given.has_value() == given_.has_value() && (!given || same(*given_))) {
      return;
    }
    given_ = given;
    const bool other = attempt_ && given && given->at_once && attempt_->with.number != given->number;
    if (other && CancelAttempt(/*gives_way=*/false)) driver_->Cancel();
    BeginIfDue();
  }
  targets_.Wake();
}

bool Engine::TakeBack() {
  MutexLock lock(mutex_);
  if (comparing_ || ReadsPrevious()) return false;
  taken_back_ = true;
  return true;
}

void Engine::GiveWay() {
  MutexLock lock(mutex_);
  if (late() && ReadsPrevious() && CancelAttempt(/*gives_way=*/true)) driver_->Cancel();
}

// Whether there is one that was not cancelled yet: the driver is to be, too.
bool Engine::CancelAttempt(bool gives_way) {
  if (!attempt_ || std::exchange(attempt_->cancelled, true)) return false;
  attempt_->gave_way = gives_way;
  return true;
}

void Engine::Doubt(const VersionRef& damaged) {
  {
    MutexLock lock(mutex_);
    if (in_place()) doubted_ = true;
    if (in_place() || attempt_) doubts_.push_back(damaged);
    const bool given = attempt_ && attempt_->with.current.version.held == damaged;
    if (given && CancelAttempt(/*gives_way=*/false)) driver_->Cancel();
  }
  if (!in_place()) route_->Doubt(damaged);  // its ranks' memory is the thread's
  targets_.Wake();
}

std::future<Result<size_t>> Engine::Verify() {
  std::promise<Result<size_t>> wanted;
  std::future<Result<size_t>> answer = wanted.get_future();
  {
    MutexLock lock(mutex_);
    compares_.push_back(std::move(wanted));
  }
  targets_.Wake();
  return answer;
}

void Engine::Cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  driver_->Cancel();
}

void Engine::Retire() {
  retired_ = true;
  Cancel();
}

// --- what it tells ---

bool Engine::under_way() const {
  MutexLock lock(mutex_);
  return attempt_.has_value();
}

std::optional<EngineOutcome> Engine::OutcomeOf(uint64_t number) const {
  MutexLock lock(mutex_);
  if (outcome_.number != number || outcome_.doubted) return std::nullopt;
  return outcome_;
}

bool Engine::RanksReadPrevious() const {
  const replica::PublishedVersion previous = context_.replicas.previous();
  return !previous.held.nothing() && !previous.damaged && previous.held != context_.replicas.current().held &&
         route_->RanksRead(previous.held);
}

bool Engine::ReadsPrevious() const {
  const replica::PublishedVersion previous = context_.replicas.previous();
  if (previous.held.nothing()) return false;
  if (attempt_) {
    if (attempt_->with.current.version.path == previous.path) return true;
    const std::optional<EngineVersions>& before = attempt_->with.before;
    if (before && before->version.path == previous.path && route_->AttemptReadsBefore()) return true;
  }
  // Ranks are given nothing while the current version is damaged: its repair does not wait for them.
  return !late() && !context_.replicas.current().damaged && RanksReadPrevious();
}

// --- its thread ---

void Engine::Loop() {
  while (true) {
    TakeDoubts();
    Track();
    switch (Next()) {
      case Work::kEnd:
        return;
      case Work::kRest:
        targets_.Rest(UntilDue());
        break;
      case Work::kAsk:
        Ask();
        break;
      case Work::kCompare:
        Compare();
        break;
      case Work::kServe:
        Serve();
        break;
    }
  }
}

Engine::Work Engine::Next() {
  MutexLock lock(mutex_);
  if (ends_) return Work::kEnd;
  BeginIfDue();
  if (attempt_) return Work::kServe;
  if (!taken_back_ && !compares_.empty()) {
    comparing_ = true;
    return Work::kCompare;
  }
  return AskDue() ? Work::kAsk : Work::kRest;
}

// In Give, too: a sync that follows at once finds the attempt under way.
void Engine::BeginIfDue() {
  if (attempt_ || !Due()) return;
  if (context_.replicas.previous().damaged) given_->before.reset();  // found since it was given
  attempt_ = Attempt{.with = *given_, .failures = driver_->failures()};
}

// Whether it is behind, and the wait after its last failure is over.
bool Engine::Due() const {
  if (taken_back_ || !given_ || retired_ || cancelled_ || !Behind()) return false;
  if (context_.replicas.current().path != given_->current.version.path) return false;  // another is given soon
  const bool fresh = given_->number != tried_;
  if (Rests() && !(fresh && given_->at_once)) return false;
  if (fresh && !late()) return true;
  const bool answers_first = over_http() && (late() || Silent());
  return Clock::now() >= serve_again_ && (!answers_first || answers_);
}

// A server is asked now and then, and ranks that came to compare are answered.
bool Engine::AskDue() const {
  if (cancelled_) return false;
  const bool asks = over_http() && (!in_place() || (late() && Behind())) && Clock::now() >= check_again_;
  return asks || (!in_place() && ranks_changed_);
}

milliseconds Engine::UntilDue() const {
  MutexLock lock(mutex_);
  milliseconds idle = kIdle;
  const auto sooner = [&](milliseconds left) {
    if (left.count() > 0) idle = std::min(idle, left);
  };
  if (LateAt() != Clock::time_point::max()) sooner(Until(LateAt()));
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
  if (current.damaged) return;  // there is nothing that it could take
  if (failed_ && !Behind()) {
    MutexLock lock(mutex_);
    if (current.held != outcome_.version) {  // a rollback to what it serves
      failed_ = false;
      last_error_.clear();
    }
  }
  const bool behind = failed_ || Behind() || RanksReadPrevious();
  const bool was = behind_.load() != Clock::time_point();
  if (behind && !was) behind_ = Clock::now();
  if (!behind && was) behind_ = Clock::time_point();
}

// What was given of a version that is damaged. An attempt has ended by now.
void Engine::TakeDoubts() {
  std::vector<VersionRef> doubts;
  {
    MutexLock lock(mutex_);
    doubts = doubts_;
  }
  if (doubts.empty()) return;
  for (const VersionRef& damaged : doubts) route_->Doubt(damaged);
  MutexLock lock(mutex_);
  doubts_.erase(doubts_.begin(), doubts_.begin() + static_cast<ptrdiff_t>(doubts.size()));
  doubted_ = doubted_ && !doubts_.empty();
}

void Engine::Ask() {
  check_again_ = Clock::now() + kCheck;
  ranks_changed_ = false;
  const bool silent = Silent();
  const Result<bool> serves = route_->Check();
  if (!silent && Silent()) silent_since_ns_ = telemetry::UnixNanos();
  {
    MutexLock lock(mutex_);
    answers_ = serves.ok();
    if (serves.ok() && !*serves && !silent) {  // it answered all the time, and does not serve what it was given
      serve_again_ = load_again_;
      load_again_ = Clock::now() + kBetweenLosses;
    }
  }
  context_.changed.Notify();
}

void Engine::Compare() {
  const Result<size_t> compared = route_->Verify();
  std::vector<std::promise<Result<size_t>>> wanted;
  {
    MutexLock lock(mutex_);
    wanted.swap(compares_);
    comparing_ = false;
  }
  for (auto& one : wanted) one.set_value(compared);
  context_.changed.Notify();
}

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
    outcome = route_->Serve(*with);
    outcome.version = held;
    outcome.number = with->number;
    outcome.total_us = begun.MicrosSince();
    span.span().bytes = outcome.written_bytes;
  }
  Take(std::move(outcome));
  context_.changed.Notify();
}

void Engine::Take(EngineOutcome outcome) {
  {
    MutexLock lock(mutex_);
    const bool counted = driver_->failures() > attempt_->failures;
    outcome.status = Explain(std::move(outcome.status), *attempt_);
    const bool failed = !outcome.status.ok() && outcome.status.code() != ErrorCode::kCancelled;
    if (in_place() && failed && !counted) ++failures_;
  }
  route_->Took(outcome);
  TakeDoubts();
  const replica::PublishedVersion current = context_.replicas.current();
  outcome.doubted = outcome.status.ok() && current.held == outcome.version && (current.damaged || Behind());
  failed_ = !outcome.status.ok();
  if (outcome.status.ok()) behind_ = Clock::time_point();
  const VersionRef served = this->served();
  MutexLock lock(mutex_);
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
  // A server that does not answer is given it as soon as it does. Each attempt pauses one again that serves the version
  // before.
  serve_again_ = Silent() ? Clock::time_point() : Clock::now() + (outcome.reverted ? kLongestWait : backoff_.Next());
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

}  // namespace lockstep::session

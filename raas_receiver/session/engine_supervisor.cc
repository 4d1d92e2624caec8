#include "raas_receiver/session/engine_supervisor.h"

#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "raas_receiver/session/agent_client.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kIdle{3'600'000};
// How often a server that can be asked is asked whether it still serves what it was given.
constexpr milliseconds kCheck{5'000};
// The same, after it did not: a server that keeps changing its mind is not to load without end.
constexpr milliseconds kCheckAfterLoss{60'000};
// Waits between loads that fail.
constexpr milliseconds kFirstWait{1'000};
constexpr milliseconds kLongestWait{60'000};

void Fill(const targets::EngineReport& report, v1::EngineTargets& proto) {
  proto.set_name(report.engine);
  proto.set_world(report.world);
  proto.set_attached(report.attached);
  *proto.mutable_serving() = ToProto(report.serving());
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
}

// What the server serves after `outcome`, as a version.
Held ServedAfter(engines::Serving outcome, const engines::EngineVersion& version,
                 const std::optional<engines::EngineVersion>& last_good, const Held& served) {
  switch (outcome) {
    case engines::Serving::kNew:
      return version.held;
    case engines::Serving::kOld:
      return served;
    case engines::Serving::kLastGood:
      return last_good ? last_good->held : Held();
    case engines::Serving::kUnknown:
      break;
  }
  return {};
}

}  // namespace

EngineSupervisor::EngineSupervisor(std::string model, EngineSupervisorOptions options,
                                   std::unique_ptr<engines::EngineDriver> driver, replica::ReplicaPair& replicas,
                                   WorkerPool& pool, telemetry::Timeline* timeline, ChangeSignal& changed)
    : model_(std::move(model)),
      in_place_(options.in_place),
      late_after_(options.late_after),
      driver_(std::move(driver)),
      replicas_(replicas),
      timeline_(timeline),
      backoff_(in_place_ ? Backoff() : Backoff(kLongestWait, kFirstWait)),
      owes_resume_(in_place_ && over_http()),
      changed_(changed),
      served_(in_place_ ? Held() : replicas_.served()),
      targets_(TargetsOptions(std::move(options.targets)), pool) {
  targets_.SetChanged([&changed] { changed.Notify(); });
}

targets::EngineTargetsOptions EngineSupervisor::TargetsOptions(targets::EngineTargetsOptions options) {
  options.model = model_;
  options.compare_only = !in_place_;
  if (over_http()) options.paused_server = [this] { return driver_->Incarnations(); };
  return options;
}

Held EngineSupervisor::served() const {
  std::lock_guard lock(mutex_);
  return served_;
}

void EngineSupervisor::SetServed(const Held& served) {
  std::lock_guard lock(mutex_);
  served_ = served;
}

// What all engines in place are wholly at; nothing: they are not all at one version, or nobody knows. Of a server that
// is paused, what it was at before: what was written since it serves once it is resumed.
Held EngineSupervisor::ServedInPlace() const {
  if (owes_resume_) return served();
  const std::vector<targets::EngineReport> engines = targets_.Describe();
  if (engines.empty()) return {};
  const Held first = engines.front().at;
  const bool same = std::all_of(engines.begin(), engines.end(),
                                [&](const targets::EngineReport& engine) { return engine.at == first; });
  return same ? first : Held();
}

std::string EngineSupervisor::Late() const {
  std::lock_guard lock(mutex_);
  if (!attempt_ || attempt_->outcome || late_after_.count() == 0) return {};
  const auto lasts = Clock::now() - attempt_->begun;
  if (lasts < late_after_) return {};
  const std::string engine = in_place_ && !over_http() ? "ranks in place" : "engine " + driver_->label();
  return Cat(engine, ": version ", attempt_->version.held.version, " is not served after ",
             std::chrono::floor<std::chrono::seconds>(lasts).count(), " s");
}

void EngineSupervisor::Describe(v1::ReceiverModel& model) const {
  model.set_engine(std::string(driver_->kind()));
  model.set_engine_failures(driver_->failures());
  for (const targets::EngineReport& report : targets_.Describe()) Fill(report, *model.add_engines());
  const Held by_directory = notifies() ? this->served() : replicas_.current().held;
  const Held served = in_place_ ? ServedInPlace() : by_directory;
  model.set_served_version(served.version);
  if (!served.nothing()) model.set_served_run(ToBytes(served.run));
}

bool EngineSupervisor::Behind() const {
  const Held current = replicas_.current().held;
  if (current.nothing()) return false;
  if (!in_place_) return served() != current;
  return targets_.Behind(current) || (owes_resume_ && targets_.AllAt(current));
}

bool EngineSupervisor::Due() const {
  if (under_way()) return ended();
  if (!notifies() || !Behind()) return false;
  return Clock::now() >= serve_again_ || replicas_.current().held != tried_;
}

milliseconds EngineSupervisor::UntilDue() const {
  if (under_way()) return kIdle;
  milliseconds idle = can_be_asked() ? kCheck : kIdle;
  for (const Clock::time_point due : {serve_again_, targets_.ranks_back_by()}) {
    const auto left = std::chrono::ceil<milliseconds>(due - Clock::now());
    if (left.count() > 0) idle = std::min(idle, left);
  }
  return idle;
}

void EngineSupervisor::Check() {
  const replica::PublishedVersion current = replicas_.current();
  const auto now = Clock::now();
  if (under_way()) return;  // the driver is its
  if (!in_place_ && !current.held.nothing()) (void)targets_.Admit(*current.layout);
  if (!can_be_asked() || now < check_again_) return;
  check_again_ = now + kCheck;
  const Held served = this->served();
  const Result<bool> still = StillServes(served);
  if (!still.ok() || *still) return;
  check_again_ = now + kCheckAfterLoss;
  telemetry::Log(telemetry::LogLevel::kWarn, "engine_restarted", {{"model", model_}, {"version", served.version}});
  SetServed({});
}

// By the directory: whether the server still serves `served`, one of the two versions that the replicas hold. An error
// is why that is not known.
Result<bool> EngineSupervisor::StillServes(const Held& served) {
  for (const replica::PublishedVersion& version : {replicas_.current(), replicas_.previous()}) {
    if (!served.nothing() && version.held == served) return driver_->StillServes(VersionOf(version, "check"));
  }
  return true;
}

engines::EngineVersion EngineSupervisor::VersionOf(const replica::PublishedVersion& version,
                                                   const std::string& mode) const {
  return {model_, version.held, version.path, mode, version.label};
}

void EngineSupervisor::Begin(const std::string& mode, uint64_t transfer) {
  const replica::PublishedVersion previous = replicas_.previous();
  Attempt attempt{.version = VersionOf(replicas_.current(), mode), .transfer = transfer};
  if (!previous.held.nothing() && over_http()) attempt.last_good = VersionOf(previous, "last_good");
  if (attempt.version.held != tried_) backoff_.Reset();
  tried_ = attempt.version.held;
  {
    std::lock_guard lock(mutex_);
    attempt_ = attempt;
  }
  if (in_place_ || !notifies()) return Run(attempt);
  loader_.Post([this, attempt = std::move(attempt)] { Run(attempt); });
}

// By the directory on the loader's thread, which has nothing but the attempt and the driver.
void EngineSupervisor::Run(const Attempt& attempt) {
  EngineOutcome outcome;
  {
    telemetry::SpanScope span(notifies() ? timeline_ : nullptr, {.name = "engine",
                                                                 .model = model_,
                                                                 .run = attempt.version.held.run,
                                                                 .version = attempt.version.held.version,
                                                                 .transfer = attempt.transfer});
    const telemetry::Moment begun;
    outcome = in_place_ ? Write(attempt.version) : Load(attempt);
    outcome.version = attempt.version.held;
    outcome.total_us = begun.MicrosSince();
    span.span().bytes = outcome.written_bytes;
  }
  {
    std::lock_guard lock(mutex_);
    attempt_->outcome = std::move(outcome);
  }
  changed_.Notify();
}

bool EngineSupervisor::under_way() const {
  std::lock_guard lock(mutex_);
  return attempt_.has_value();
}

bool EngineSupervisor::ended() const {
  std::lock_guard lock(mutex_);
  return attempt_ && attempt_->outcome;
}

bool EngineSupervisor::ReadsPrevious() const {
  const replica::PublishedVersion previous = replicas_.previous();
  if (previous.held.nothing()) return false;
  if (in_place_) return previous.held != replicas_.current().held && targets_.Reads(previous.held);
  std::lock_guard lock(mutex_);
  if (!attempt_) return false;
  return previous.path == attempt_->version.path || (attempt_->last_good && previous.path == attempt_->last_good->path);
}

void EngineSupervisor::MarkServed(const Held& served) {
  const Status marked = replicas_.MarkServed(served);
  if (!marked.ok()) telemetry::LogWarn("served_version_record_failed", marked, {{"model", model_}});
}

void EngineSupervisor::AwaitEnd() {
  while (!changed_.WaitFor(kIdle, [this] { return ended(); })) {
  }
}

void EngineSupervisor::Cancel() {
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  driver_->Cancel();
}

void EngineSupervisor::Interrupt() {
  if (!under_way()) return;
  driver_->Cancel();
  AwaitEnd();
  std::lock_guard lock(mutex_);
  if (!cancelled_) driver_->Reset();
}

EngineOutcome EngineSupervisor::Take() {
  AwaitEnd();
  EngineOutcome outcome;
  bool served_another = false;
  {
    std::lock_guard lock(mutex_);
    outcome = *std::move(attempt_->outcome);
    outcome.distrusted = attempt_->distrusted;
    if (outcome.distrusted) outcome.served = {};
    attempt_.reset();
    served_another = outcome.served != std::exchange(served_, outcome.served);
  }
  if (driver_->notifies() && !in_place_ && served_another) {
    MarkServed(outcome.served);
  }
  if (outcome.status.ok()) {
    backoff_.Reset();
    serve_again_ = {};
  } else {
    // Each attempt pauses a server that serves the version before again.
    serve_again_ = Clock::now() + (outcome.reverted ? kLongestWait : backoff_.Next());
  }
  return outcome;
}

EngineOutcome EngineSupervisor::Load(const Attempt& attempt) {
  const Held before = served();
  engines::LoadOutcome loaded = driver_->Load(attempt.version, attempt.last_good);
  return {.status = std::move(loaded.status),
          .version = {},
          .served = ServedAfter(loaded.serving, attempt.version, attempt.last_good, before),
          .reverted = loaded.serving == engines::Serving::kLastGood};
}

EngineOutcome EngineSupervisor::Write(const engines::EngineVersion& version) {
  EngineOutcome outcome;
  const telemetry::Moment begun;
  const replica::PublishedVersion current = replicas_.current();
  const replica::PublishedVersion previous = replicas_.previous();
  std::optional<targets::TargetVersion> before;
  if (!previous.held.nothing())
    before = targets::TargetVersion{previous.held, previous.layout, replicas_.previous_data()};
  outcome.status =
      targets_.Prepare({current.held, current.layout, replicas_.current_data(), current.label}, before,
                       [this](const Held& from, const Held& to) { return replicas_.DeltasBetween(from, to); });
  outcome.prepare_us = begun.MicrosSince();
  if (!targets_.prepared()) {
    if (outcome.status.ok() && Behind()) outcome.status = PausedAndResumed(version);
    return outcome;
  }
  const telemetry::Moment pause;
  const Status written = WritePaused(version, VersionOf(before ? previous : current, "resumed"));
  outcome.pause_us = pause.MicrosSince();
  if (outcome.status.ok()) outcome.status = written;
  for (const targets::EngineReport& engine : targets_.Describe()) outcome.written_bytes += engine.last_written_bytes;
  return outcome;
}

// Memory is whole, and the server may stand still all the same: a receiver ended, or failed, between the two.
Status EngineSupervisor::PausedAndResumed(const engines::EngineVersion& version) {
  LS_RETURN_IF_ERROR(driver_->Pause(version));
  return Resume(version);
}

// The pause. A server resumes only when all ranks of all engines are there, and at one version; it stays paused else,
// until Serve is tried again.
Status EngineSupervisor::WritePaused(const engines::EngineVersion& version, const engines::EngineVersion& before) {
  SetServed(ServedInPlace());
  owes_resume_ = over_http();
  if (const Status paused = driver_->Pause(version); !paused.ok()) {
    targets_.Abandon();
    return paused;
  }
  const Status written = targets_.Commit();
  if (targets_.AllAt(version.held)) {
    const Status resumed = Resume(version);
    return written.ok() ? resumed : written;
  }
  const Status resumed = targets_.AllAt(before.held) ? Resume(before) : OkStatus();
  if (!written.ok()) return resumed.ok() || !over_http() ? written : resumed;
  return {ErrorCode::kState, Cat("not every engine is at version ", version.held.version, " yet")};
}

Status EngineSupervisor::Resume(const engines::EngineVersion& serving) {
  LS_RETURN_IF_ERROR(driver_->Resume(serving));
  owes_resume_ = false;
  return OkStatus();
}

Result<size_t> EngineSupervisor::Verify() {
  if (targets_.empty()) return 0;
  const replica::PublishedVersion current = replicas_.current();
  const replica::PublishedVersion previous = replicas_.previous();
  const Held held = in_place_ || !notifies() ? current.held : served();
  if (held.nothing()) return Status(ErrorCode::kState, "it is not known which version engines serve");
  if (held == current.held) return targets_.Verify({held, current.layout, replicas_.current_data()});
  if (held == previous.held) return targets_.Verify({held, previous.layout, replicas_.previous_data()});
  return Status(ErrorCode::kState, Cat("engines serve version ", held.version, ", which is not held any more"));
}

void EngineSupervisor::Distrust() {
  if (!in_place_) {
    {
      std::lock_guard lock(mutex_);
      served_ = {};
      if (attempt_) attempt_->distrusted = true;
    }
    if (driver_->notifies()) MarkServed({});  // also for the receiver after this one
    return;
  }
  const replica::PublishedVersion current = replicas_.current();
  targets_.Distrust({current.held, current.layout, replicas_.current_data()});
}

}  // namespace lockstep::session

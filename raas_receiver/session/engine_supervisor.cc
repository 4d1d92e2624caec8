#include "raas_receiver/session/engine_supervisor.h"

#include <algorithm>

#include "common/telemetry/log.h"
#include "raas_receiver/session/agent_client.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{100};
constexpr milliseconds kLongestBackoff{10'000};
constexpr milliseconds kIdle{3'600'000};
// How often a server that can be asked is asked whether it still serves what it was given.
constexpr milliseconds kCheck{5'000};
// The same, after it did not: a server that keeps changing its mind is not to load without end.
constexpr milliseconds kCheckAfterLoss{60'000};

EngineUpdaterOptions ForModel(EngineUpdaterOptions options, const std::string& model) {
  options.targets.model = model;
  return options;
}

void Fill(const targets::EngineReport& report, v1::EngineTargets& proto) {
  proto.set_name(report.engine);
  proto.set_world(report.world);
  proto.set_attached(report.attached);
  *proto.mutable_serving() = ToProto(report.serving);
  proto.set_mixed(report.mixed);
  proto.set_parameters(report.parameters);
  proto.set_target_bytes(report.target_bytes);
  proto.set_last_prepare_us(static_cast<uint64_t>(report.last_prepare.count()));
  proto.set_last_pause_us(static_cast<uint64_t>(report.last_pause.count()));
  proto.set_last_written_bytes(report.last_written_bytes);
  proto.set_commits(report.commits);
  proto.set_failures(report.failures);
  proto.set_last_error(report.last_error);
}

}  // namespace

EngineSupervisor::EngineSupervisor(std::string model, EngineUpdaterOptions options,
                                   std::unique_ptr<engines::EngineDriver> driver, replica::ReplicaPair& replicas,
                                   WorkerPool& pool, telemetry::Timeline* timeline, ChangeSignal& changed)
    : model_(std::move(model)),
      replicas_(replicas),
      timeline_(timeline),
      backoff_(kFirstBackoff, kLongestBackoff),
      served_(replicas_.served()),
      updater_(ForModel(std::move(options), model_), std::move(driver), replicas_, pool) {
  updater_.targets().SetChanged([&changed] { changed.Notify(); });
}

Held EngineSupervisor::served() const {
  std::lock_guard lock(mutex_);
  return served_;
}

void EngineSupervisor::SetServed(const Held& served) {
  std::lock_guard lock(mutex_);
  served_ = served;
}

void EngineSupervisor::Describe(v1::ReceiverModel& model) const {
  model.set_engine(std::string(updater_.kind()));
  model.set_engine_failures(updater_.failures());
  for (const targets::EngineReport& report : updater_.Describe()) Fill(report, *model.add_engines());
  const Held by_directory = updater_.notifies() ? served() : replicas_.current().held;
  model.set_served_version((in_place() ? updater_.ServedInPlace() : by_directory).version);
}

bool EngineSupervisor::Due() const {
  return updater_.TriesAgain() && Clock::now() >= serve_again_ && Behind();
}

milliseconds EngineSupervisor::UntilDue() const {
  const auto left = std::chrono::duration_cast<milliseconds>(serve_again_ - Clock::now());
  const milliseconds idle = updater_.CanBeAsked() ? kCheck : kIdle;
  return left.count() < 0 ? idle : std::min(idle, left + milliseconds(1));
}

void EngineSupervisor::Check() {
  const auto now = Clock::now();
  if (!updater_.CanBeAsked() || now < check_again_) return;
  check_again_ = now + kCheck;
  const Held served = this->served();
  const Result<bool> still = updater_.StillServes(served);
  if (!still.ok() || *still) return;
  check_again_ = now + kCheckAfterLoss;
  telemetry::Log(telemetry::LogLevel::kWarn, "engine_restarted", {{"model", model_}, {"version", served.version}});
  SetServed({});
}

EngineOutcome EngineSupervisor::Serve(const std::string& mode, uint64_t transfer) {
  const Held before = served();
  EngineOutcome outcome;
  {
    const Held held = replicas_.current().held;
    telemetry::SpanScope span(
        updater_.notifies() ? timeline_ : nullptr,
        {.name = "engine", .model = model_, .run = held.run, .version = held.version, .transfer = transfer});
    outcome = updater_.Serve(mode, before);
    span.span().bytes = outcome.written_bytes;
  }
  const bool by_directory = updater_.notifies() && !in_place();
  if (by_directory && outcome.served != before) {
    const Status marked = replicas_.MarkServed(outcome.served);
    if (!marked.ok()) telemetry::LogWarn("served_version_record_failed", marked, {{"model", model_}});
  }
  SetServed(outcome.served);
  if (outcome.status.ok()) {
    backoff_.Reset();
  } else {
    serve_again_ = Clock::now() + backoff_.Next();
  }
  return outcome;
}

}  // namespace lockstep::session

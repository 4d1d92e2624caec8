#include "raas_receiver/engines/http_driver.h"

#include <thread>

#include "common/base/text.h"
#include "common/os/deadline.h"
#include "common/telemetry/log.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// For the calls that let a server go on when the receiver stops in between: for each, and to begin them again.
constexpr milliseconds kFarewell{2'000};
constexpr milliseconds kFarewellAgain{100};
constexpr size_t kRunDigits = 8;

Status Cancelled() {
  return {ErrorCode::kCancelled, "the receiver stops"};
}

Status WithEnd(const Status& status, std::string_view end) {
  return {status.code(), Cat(status.message(), "; ", end)};
}

}  // namespace

std::string VersionName(const Held& held) {
  return Cat(ToHex(held.run).substr(0, kRunDigits), "-", held.version);
}

HttpDriver::HttpDriver(EngineOptions options, std::unique_ptr<EngineServer> server, std::unique_ptr<EngineSteps> steps)
    : options_(std::move(options)), server_(std::move(server)), steps_(std::move(steps)) {}

void HttpDriver::Cancel() {
  server_->Cancel();
  stop_.Set();
}

Status HttpDriver::WithNames(const Status& status, const EngineVersion& version) const {
  const std::string what = version.held.nothing() ? "" : Cat("version ", version.held.version, " of ");
  return status.WithContext(Cat(what, "model ", version.model, " at the ", options_.kind, " server"));
}

// Takes `step` until it is OK, the driver is cancelled, or it has failed `attempts` times.
Status HttpDriver::Tried(const EngineVersion& version, std::string_view what, const Step& step) {
  Status status;
  auto backoff = options_.first_backoff;
  for (int attempt = 1; attempt <= options_.attempts; ++attempt, backoff = NextBackoff(backoff)) {
    status = server_->cancelled() ? Cancelled() : step();
    if (status.ok() || status.code() == ErrorCode::kCancelled) return status;
    ++failures_;
    LogWarn("engine_step_failed", status,
            {{"engine", options_.kind},
             {"step", what},
             {"model", version.model},
             {"version", version.held.version},
             {"attempt", attempt}});
    if (attempt < options_.attempts && stop_.Wait(backoff)) return Cancelled();
  }
  return status;
}

// The same for a step that lets a whole version be served: a driver that is cancelled takes it, too, as its last.
Status HttpDriver::TriedToTheEnd(const EngineVersion& version, std::string_view what, const Step& step) {
  Status status = Tried(version, what, step);
  if (status.ok() || !server_->cancelled()) return status;
  server_->AllowFarewell(kFarewell);
  const Deadline deadline(kFarewell);
  while (true) {
    status = step();
    if (status.ok() || deadline.Passed()) return status;
    std::this_thread::sleep_for(kFarewellAgain);
  }
}

LoadOutcome HttpDriver::Load(const EngineVersion& version, const std::optional<EngineVersion>& last_good) {
  const auto begin = std::chrono::steady_clock::now();
  LoadOutcome outcome{Cancelled(), fit_ == Fit::kNo ? Serving::kUnknown : Serving::kOld};
  bool went_back = false;
  outcome.status = Tried(version, "load", [&] {
    outcome = LoadOnce(version, last_good);
    went_back = went_back || outcome.serving == Serving::kLastGood;
    return outcome.status;
  });
  if (!outcome.status.ok()) {
    if (went_back && outcome.serving == Serving::kOld) outcome.serving = Serving::kLastGood;
    outcome.status = WithNames(outcome.status, version);
    return outcome;
  }
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  Log(LogLevel::kInfo, "engine_loaded",
      {{"engine", options_.kind},
       {"model", version.model},
       {"run", ToHex(version.held.run)},
       {"version", version.held.version},
       {"duration_s", duration.count()}});
  return outcome;
}

LoadOutcome HttpDriver::LoadOnce(const EngineVersion& version, const std::optional<EngineVersion>& last_good) {
  if (const Status known = LearnFit(); !known.ok()) return {known, Serving::kUnknown};
  if (const Status stopped = steps_->Stop(); !stopped.ok()) return Release(version, stopped);
  const ReadOutcome read = Read(version);
  if (!read.status.ok()) return read.touched ? GoBack(read.status, last_good) : Release(version, read.status);
  const Status status = TriedToTheEnd(version, "finish", [&] { return Finish(version); });
  if (status.ok()) return {status, Serving::kNew};
  return {WithEnd(status, "it holds the version and stays stopped"), Serving::kUnknown};
}

// After a read that may have left parts of a version.
LoadOutcome HttpDriver::GoBack(const Status& cause, const std::optional<EngineVersion>& last_good) {
  const std::string_view stays = "it may hold parts of two versions and stays stopped; restart it, or load a version";
  if (!last_good.has_value() || cause.code() == ErrorCode::kCancelled) {
    return {WithEnd(cause, stays), Serving::kUnknown};
  }
  const Status back = Tried(*last_good, "go_back", [&]() -> Status {
    LS_RETURN_IF_ERROR(steps_->Stop());
    LS_RETURN_IF_ERROR(Read(*last_good).status);
    return TriedToTheEnd(*last_good, "finish", [&] { return Finish(*last_good); });
  });
  if (!back.ok()) {
    const std::string why =
        Cat("version ", last_good->held.version, " could not be loaded again (", back.message(), "); ", stays);
    return {WithEnd(cause, why), Serving::kUnknown};
  }
  LogWarn("engine_went_back", cause,
          {{"engine", options_.kind},
           {"model", last_good->model},
           {"run", ToHex(last_good->held.run)},
           {"version", last_good->held.version}});
  return {WithEnd(cause, Cat("version ", last_good->held.version, " was loaded again")), Serving::kLastGood};
}

// Lets the server go on with the weights it has, unless these may be a mix.
LoadOutcome HttpDriver::Release(const EngineVersion& version, const Status& cause) {
  if (fit_ != Fit::kYes) {
    return {WithEnd(cause, "what it holds is not known to be one version, so it stays stopped"), Serving::kUnknown};
  }
  const Status status = TriedToTheEnd(version, "release", [&] { return steps_->GoOn(); });
  if (status.ok()) return {cause, Serving::kOld};
  return {WithEnd(cause, Cat("nor could it be made to go on: ", status.message())), Serving::kUnknown};
}

Status HttpDriver::LearnFit() {
  if (fit_ != Fit::kUnknown) return OkStatus();
  // A server that somebody left stopped may have been left amid a load.
  LS_ASSIGN_OR_RETURN(const bool runs, steps_->Runs());
  fit_ = runs ? Fit::kYes : Fit::kNo;
  return OkStatus();
}

ReadOutcome HttpDriver::Read(const EngineVersion& version) {
  if (server_->cancelled()) return {Cancelled()};
  ReadOutcome outcome = steps_->Read(version.path, VersionName(version.held));
  if (outcome.touched) fit_ = Fit::kNo;
  return outcome;
}

Status HttpDriver::Finish(const EngineVersion& version) {
  LS_RETURN_IF_ERROR(steps_->DropCaches());
  if (!version.held.nothing()) {
    LS_ASSIGN_OR_RETURN(keeps_names_, steps_->Name(VersionName(version.held)));
  }
  LS_RETURN_IF_ERROR(steps_->GoOn());
  fit_ = Fit::kYes;
  return OkStatus();
}

Status HttpDriver::Pause(const EngineVersion& version) {
  const Status status = Tried(version, "pause", [&] {
    LS_RETURN_IF_ERROR(LearnFit());
    const Status stopped = steps_->Stop();
    return stopped.ok() ? stopped : Release(version, stopped).status;
  });
  if (!status.ok()) return WithNames(status, version);
  fit_ = Fit::kNo;  // until he who writes its memory says that he is done
  return status;
}

Status HttpDriver::Resume(const EngineVersion& serving) {
  const Status status = TriedToTheEnd(serving, "resume", [&] { return Finish(serving); });
  return status.ok() ? status : WithNames(WithEnd(status, "it stays stopped"), serving);
}

Result<bool> HttpDriver::StillServes(const EngineVersion& version) {
  if (server_->cancelled()) return Cancelled();
  if (!keeps_names_) return true;
  LS_ASSIGN_OR_RETURN(const std::optional<std::string> name, steps_->TellName());
  if (!name.has_value() || *name == VersionName(version.held)) return true;
  fit_ = Fit::kUnknown;
  return false;
}

}  // namespace lockstep

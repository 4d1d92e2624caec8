#include "raas_receiver/engine/drivers/http_driver.h"

#include <thread>

#include "common/base/backoff.h"
#include "common/base/text.h"
#include "common/os/deadline.h"
#include "common/telemetry/log.h"

namespace lockstep::engine {
namespace {

using std::chrono::milliseconds;

// For the calls that resume a server although they are cancelled: the time of each, and of all, and between two.
constexpr milliseconds kAfterCancel{2'000};
constexpr milliseconds kAfterCancelPause{100};
constexpr size_t kRunDigits = 8;
// Steps, by their names in the log, that read a whole model.
constexpr std::string_view kLoad = "load";
constexpr std::string_view kRevert = "revert";

Status Cancelled() {
  return {ErrorCode::kCancelled, "cancelled"};
}

Status WithEnd(const Status& status, std::string_view end) {
  return {status.code(), Cat(status.message(), "; ", end)};
}

// A label may be learned, or lost, after the name was given.
std::string_view WithoutLabel(std::string_view name) {
  return name.substr(0, name.find('/'));
}

}  // namespace

std::string VersionName(const EngineVersion& version) {
  const std::string name = Cat(ToHex(version.held.run).substr(0, kRunDigits), "-", version.held.version);
  return version.label.empty() ? name : Cat(name, "/", version.label);
}

HttpDriver::HttpDriver(const DriverKind& kind, EngineOptions options, std::unique_ptr<EngineServer> server,
                       std::unique_ptr<EngineSteps> steps)
    : EngineDriver(kind, options.url),
      options_(std::move(options)),
      server_(std::move(server)),
      steps_(std::move(steps)) {}

void HttpDriver::Cancel() {
  server_->Cancel();
  stop_.Set();
}

void HttpDriver::Reset() {
  server_->Reset();
  stop_.Reset();
}

Status HttpDriver::WithNames(const Status& status, const EngineVersion& version) const {
  const std::string what = version.held.nothing() ? "" : Cat("version ", version.held.version, " of ");
  return status.WithContext(Cat(what, "model ", version.model, " at the ", kind(), " server"));
}

// Takes `step` until it is OK, the driver is cancelled, or it has failed `attempts` times. One that reads a model and
// hangs is not taken again: what it reads cannot be written over meanwhile, and a newer version may be there. Nor is
// one that got no connection: who listens there next may be another server, in another state.
Status HttpDriver::Retry(const EngineVersion& version, std::string_view what, const Step& step) {
  const bool reads_model = what == kLoad || what == kRevert;
  Status status;
  Backoff backoff(kLongestBackoff, options_.first_backoff);
  for (int attempt = 1; attempt <= options_.attempts; ++attempt) {
    status = server_->cancelled() ? Cancelled() : step();
    if (status.ok() || status.code() == ErrorCode::kCancelled) return status;
    ++failures_;
    telemetry::LogWarn("engine_step_failed", status,
                       {{"engine", kind()},
                        {"step", what},
                        {"model", version.model},
                        {"version", version.held.version},
                        {"attempt", attempt}});
    if (status.code() == ErrorCode::kUnavailable) {
      resumable_ = Resumable::kUnknown;
      return status;
    }
    if (reads_model && status.code() == ErrorCode::kDeadline) return status;
    if (attempt < options_.attempts && stop_.Wait(backoff.Next())) return Cancelled();
  }
  return status;
}

// The same for a step that resumes a server with a whole version: a driver that is cancelled takes it, too, as its
// last.
Status HttpDriver::RetryAfterCancel(const EngineVersion& version, std::string_view what, const Step& step) {
  Status status = Retry(version, what, step);
  if (status.ok() || !server_->cancelled()) return status;
  server_->AllowAfterCancel(kAfterCancel);
  const os::Deadline deadline(kAfterCancel);
  while (true) {
    status = step();
    if (status.ok() || deadline.Passed()) return status;
    std::this_thread::sleep_for(kAfterCancelPause);
  }
}

LoadOutcome HttpDriver::Load(const EngineVersion& version, const std::optional<EngineVersion>& last_good) {
  const auto begin = std::chrono::steady_clock::now();
  LoadOutcome outcome{Cancelled(), resumable_ == Resumable::kNo ? Serving::kUnknown : Serving::kOld};
  bool reverted = false;
  outcome.status = Retry(version, kLoad, [&] {
    outcome = LoadOnce(version, last_good);
    reverted = reverted || outcome.serving == Serving::kLastGood;
    return outcome.status;
  });
  if (!outcome.status.ok()) {
    if (reverted && outcome.serving == Serving::kOld) outcome.serving = Serving::kLastGood;
    outcome.status = WithNames(outcome.status, version);
    return outcome;
  }
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_loaded",
                 {{"engine", kind()},
                  {"model", version.model},
                  {"run", ToHex(version.held.run)},
                  {"version", version.held.version},
                  {"duration_s", duration.count()}});
  return outcome;
}

LoadOutcome HttpDriver::LoadOnce(const EngineVersion& version, const std::optional<EngineVersion>& last_good) {
  if (const Status known = FindResumable(); !known.ok()) return {known, Serving::kUnknown};
  if (const Status paused = steps_->Pause(); !paused.ok()) return Release(version, paused);
  const ReadOutcome read = Read(version);
  if (!read.status.ok()) return read.touched ? Revert(read.status, last_good) : Release(version, read.status);
  const Status status = RetryAfterCancel(version, "finish", [&] { return Finish(version); });
  if (status.ok()) return {status, Serving::kNew};
  return {WithEnd(status, "it holds the version and stays paused"), Serving::kUnknown};
}

// After a read that may have left parts of a version.
LoadOutcome HttpDriver::Revert(const Status& cause, const std::optional<EngineVersion>& last_good) {
  const std::string_view stays = "it may hold parts of two versions and stays paused; restart it, or load a version";
  if (!last_good.has_value() || cause.code() == ErrorCode::kCancelled) {
    return {WithEnd(cause, stays), Serving::kUnknown};
  }
  const Status back = Retry(*last_good, kRevert, [&]() -> Status {
    LS_RETURN_IF_ERROR(steps_->Pause());
    LS_RETURN_IF_ERROR(Read(*last_good).status);
    return RetryAfterCancel(*last_good, "finish", [&] { return Finish(*last_good); });
  });
  if (!back.ok()) {
    const std::string why =
        Cat("version ", last_good->held.version, " could not be loaded again (", back.message(), "); ", stays);
    return {WithEnd(cause, why), Serving::kUnknown};
  }
  telemetry::LogWarn("engine_load_reverted", cause,
                     {{"engine", kind()},
                      {"model", last_good->model},
                      {"run", ToHex(last_good->held.run)},
                      {"version", last_good->held.version}});
  return {WithEnd(cause, Cat("version ", last_good->held.version, " was loaded again")), Serving::kLastGood};
}

// Resumes the server with the weights it has, unless these may be a mix, or it is gone.
LoadOutcome HttpDriver::Release(const EngineVersion& version, const Status& cause) {
  if (cause.code() == ErrorCode::kUnavailable) {
    if (resumable_ == Resumable::kYes) (void)steps_->Resume();  // it may have been paused before it took no connection
    return {cause, Serving::kUnknown};
  }
  if (resumable_ != Resumable::kYes) {
    return {WithEnd(cause, "what it holds is not known to be one version, so it stays paused"), Serving::kUnknown};
  }
  const Status status = RetryAfterCancel(version, "release", [&] { return steps_->Resume(); });
  if (status.ok()) return {cause, Serving::kOld};
  return {WithEnd(cause, Cat("nor could it be resumed: ", status.message())), Serving::kUnknown};
}

Status HttpDriver::FindResumable() {
  if (resumable_ != Resumable::kUnknown) return OkStatus();
  // A server that was found paused may have been left amid a load.
  LS_ASSIGN_OR_RETURN(const bool runs, steps_->Runs());
  resumable_ = runs ? Resumable::kYes : Resumable::kNo;
  return OkStatus();
}

ReadOutcome HttpDriver::Read(const EngineVersion& version) {
  if (server_->cancelled()) return {Cancelled()};
  ReadOutcome outcome = steps_->Read(version.path, VersionName(version));
  if (outcome.touched) resumable_ = Resumable::kNo;
  if (outcome.status.ok() && !options_.check.empty()) outcome.status = Check(version);
  return outcome;
}

// What it has read, by the checksums that it computes.
Status HttpDriver::Check(const EngineVersion& version) {
  LS_ASSIGN_OR_RETURN(const std::vector<RankDigests> ranks, steps_->Digests());
  const auto digests = [this](ByteView bytes) -> Result<std::vector<std::string>> {
    if (server_->cancelled()) return Cancelled();
    return steps_->DigestsOf(bytes);
  };
  LS_ASSIGN_OR_RETURN(const size_t compared, check_.Compare(ranks, version.path, digests));
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_checked",
                 {{"engine", kind()},
                  {"model", version.model},
                  {"version", version.held.version},
                  {"ranks", ranks.size()},
                  {"compared_tensors", compared}});
  return OkStatus();
}

Status HttpDriver::Finish(const EngineVersion& version) {
  LS_RETURN_IF_ERROR(steps_->DropCaches());
  if (!version.held.nothing()) {
    LS_ASSIGN_OR_RETURN(keeps_names_, steps_->Name(VersionName(version)));
  }
  LS_RETURN_IF_ERROR(steps_->Resume());
  resumable_ = Resumable::kYes;
  return OkStatus();
}

Status HttpDriver::Pause(const EngineVersion& version) {
  const Status status = Retry(version, "pause", [&] {
    LS_RETURN_IF_ERROR(FindResumable());
    Status paused = steps_->Pause();
    if (paused.ok()) paused = steps_->BeginWrites();
    return paused.ok() ? paused : Release(version, paused).status;
  });
  if (!status.ok()) return WithNames(status, version);
  resumable_ = Resumable::kNo;  // until Resume, which follows the writes to its memory
  return status;
}

Status HttpDriver::Resume(const EngineVersion& serving) {
  const Status status = RetryAfterCancel(serving, "resume", [&] { return Finish(serving); });
  return status.ok() ? status : WithNames(WithEnd(status, "it stays paused"), serving);
}

Result<std::optional<bool>> HttpDriver::StillServes(const EngineVersion& version) {
  if (server_->cancelled()) return Cancelled();
  std::optional<std::string> name;
  if (keeps_names_) {
    LS_ASSIGN_OR_RETURN(name, steps_->ServedName());
  } else {
    LS_RETURN_IF_ERROR(Answers());
  }
  if (!name.has_value()) return std::optional<bool>();
  if (WithoutLabel(*name) != WithoutLabel(VersionName(version))) {
    resumable_ = Resumable::kUnknown;
    return std::optional(false);
  }
  LS_RETURN_IF_ERROR(FindResumable());  // a receiver before this one may have left it amid a load, under the old name
  return std::optional(resumable_ == Resumable::kYes);
}

}  // namespace lockstep::engine

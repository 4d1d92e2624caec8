#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <vector>

#include "common/base/backoff.h"
#include "common/base/text.h"
#include "common/os/shell.h"
#include "common/telemetry/log.h"
#include "raas_receiver/engine/drivers/drivers.h"

namespace lockstep::engine {
namespace {

std::vector<std::string> EnvironmentOf(const EngineVersion& version) {
  return {Cat("LOCKSTEP_MODEL=", version.model),
          Cat("LOCKSTEP_RUN=", ToHex(version.held.run)),
          Cat("LOCKSTEP_VERSION=", version.held.version),
          Cat("LOCKSTEP_PATH=", version.path),
          Cat("LOCKSTEP_MODE=", version.mode),
          Cat("LOCKSTEP_LABEL=", version.label)};
}

constexpr int kShellSignals = 128;  // what a shell adds to the signal that its command died of
constexpr int kLastSignal = 64;

// Whether the command ended by itself.
bool Exited(const os::ShellOutcome& outcome) {
  if (outcome.stopped || outcome.timed_out || !WIFEXITED(outcome.wait_status)) return false;
  const int status = WEXITSTATUS(outcome.wait_status);
  return status <= kShellSignals || status > kShellSignals + kLastSignal;
}

Status StatusOf(const os::ShellOutcome& outcome, std::chrono::milliseconds timeout) {
  if (outcome.stopped) return {ErrorCode::kCancelled, "the hook was cancelled, and killed"};
  if (outcome.timed_out)
    return {ErrorCode::kDeadline, Cat("the hook took longer than ", timeout.count(), " ms and was killed")};
  if (outcome.wait_status == 0) return OkStatus();
  const std::string how = WIFSIGNALED(outcome.wait_status)
                              ? Cat("died of signal ", WTERMSIG(outcome.wait_status))
                              : Cat("ended with status ", WEXITSTATUS(outcome.wait_status));
  const std::string said = outcome.output_tail.empty() ? "" : Cat("; it said: ", outcome.output_tail);
  return {ErrorCode::kAborted, Cat("the hook ", how, said)};
}

// The program that `command` runs; empty where only the shell can tell.
std::string ProgramOf(std::string_view command) {
  command.remove_prefix(std::min(command.find_first_not_of(" \t\n"), command.size()));
  const std::string_view word = command.substr(0, command.find_first_of(" \t\n;&|()<>"));
  return word.find_first_of("$`\"'\\*?[]{}~=#!") == word.npos ? std::string(word) : "";
}

Status CheckExecutable(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (S_ISDIR(info.st_mode)) return {ErrorCode::kConfig, Cat(path, " is a directory")};
  if (::access(path.c_str(), X_OK) != 0) return {ErrorCode::kConfig, Cat(path, " may not be executed; chmod +x it")};
  return OkStatus();
}

Status CheckProgram(const std::string& command) {
  const std::string program = ProgramOf(command);
  if (program.empty()) return OkStatus();
  Status found;
  if (program.find('/') != program.npos) {
    found = CheckExecutable(program);
  } else {
    constexpr std::chrono::seconds kLookup{10};
    LS_ASSIGN_OR_RETURN(const os::ShellOutcome outcome,
                        os::RunShell(Cat("command -v ", program), {}, kLookup, os::Event()));
    if (outcome.wait_status != 0) found = {ErrorCode::kConfig, Cat("there is no ", program, " in PATH")};
  }
  return found.ok() ? found
                    : Status(ErrorCode::kConfig,
                             Cat("hook \"", CleanText(WithoutPasswords(command), 200), "\": ", found.message()));
}

class HookDriver final : public EngineDriver {
 public:
  HookDriver(const DriverKind& kind, EngineOptions options) : EngineDriver(kind), options_(std::move(options)) {}

  LoadOutcome Load(const EngineVersion& version, const std::optional<EngineVersion>&) override;
  Status Pause(const EngineVersion&) override { return OkStatus(); }
  Status Resume(const EngineVersion& serving) override {
    return serving.held.nothing() ? OkStatus() : Load(serving, std::nullopt).status;
  }
  Result<std::optional<bool>> StillServes(const EngineVersion&) override { return std::optional<bool>(); }
  void Cancel() override { stop_.Set(); }
  void Reset() override { stop_.Reset(); }
  uint64_t failures() const override { return failures_; }

 private:
  LoadOutcome Attempt(const EngineVersion& version, int attempt);

  const EngineOptions options_;
  os::Event stop_;
  std::atomic<uint64_t> failures_ = 0;
};

// When every attempt ended with an error status of its own, the engine serves what it served. One that hangs is the
// last: what it reads cannot be written over meanwhile, and a newer version may be there.
LoadOutcome HookDriver::Load(const EngineVersion& version, const std::optional<EngineVersion>&) {
  LoadOutcome outcome;
  bool unchanged = true;
  const auto serving = [&] { return unchanged ? Serving::kOld : Serving::kUnknown; };
  Backoff backoff(kLongestBackoff, options_.first_backoff);
  bool last = false;
  int attempt = 0;
  while (!last) {
    const auto wait = attempt++ == 0 ? std::chrono::milliseconds(0) : backoff.Next();
    if (stop_.Wait(wait)) return {{ErrorCode::kCancelled, "the hook was cancelled"}, serving()};
    outcome = Attempt(version, attempt);
    if (outcome.status.ok() || outcome.status.code() == ErrorCode::kCancelled) return outcome;
    unchanged = unchanged && outcome.serving == Serving::kOld;
    ++failures_;
    last = attempt == options_.attempts || outcome.status.code() == ErrorCode::kDeadline;
    telemetry::LogError(last ? "hook_failed" : "hook_attempt_failed", outcome.status,
                        {{"model", version.model},
                         {"run", ToHex(version.held.run)},
                         {"version", version.held.version},
                         {"attempt", attempt}});
  }
  const std::string what = Cat("version ", version.held.version, " of model ", version.model, ", after ", attempt,
                               attempt == 1 ? " attempt" : " attempts");
  return {outcome.status.WithContext(what), serving()};
}

LoadOutcome HookDriver::Attempt(const EngineVersion& version, int attempt) {
  const auto begin = std::chrono::steady_clock::now();
  const Result<os::ShellOutcome> run =
      os::RunShell(options_.command, EnvironmentOf(version), options_.load_timeout, stop_);
  if (!run.ok()) return {run.status(), Serving::kUnknown};
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  Status status = StatusOf(*run, options_.load_timeout);
  if (!status.ok()) return {std::move(status), Exited(*run) ? Serving::kOld : Serving::kUnknown};
  telemetry::Log(telemetry::LogLevel::kInfo, "hook_accepted",
                 {{"model", version.model},
                  {"run", ToHex(version.held.run)},
                  {"version", version.held.version},
                  {"attempt", attempt},
                  {"duration_s", duration.count()},
                  {"output", run->output_tail}});
  return {std::move(status), Serving::kNew};
}

}  // namespace

Result<std::unique_ptr<EngineDriver>> NewHookDriver(const DriverKind& kind, EngineOptions options) {
  LS_RETURN_IF_ERROR(CheckProgram(options.command));
  return std::unique_ptr<EngineDriver>(std::make_unique<HookDriver>(kind, std::move(options)));
}

}  // namespace lockstep::engine

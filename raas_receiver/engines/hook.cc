#include "raas_receiver/engines/hook.h"

#include <sys/wait.h>

#include <vector>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep {
namespace {

std::vector<std::string> EnvironmentOf(const HookEvent& event) {
  return {Cat("LOCKSTEP_MODEL=", event.model), Cat("LOCKSTEP_RUN=", ToHex(event.held.run)),
          Cat("LOCKSTEP_VERSION=", event.held.version), Cat("LOCKSTEP_PATH=", event.path),
          Cat("LOCKSTEP_MODE=", event.mode)};
}

constexpr int kShellSignals = 128;  // what a shell adds to the signal that its command died of
constexpr int kLastSignal = 64;

// Whether the command ended by itself.
bool Exited(const ShellOutcome& outcome) {
  if (outcome.stopped || outcome.timed_out || !WIFEXITED(outcome.wait_status)) return false;
  const int status = WEXITSTATUS(outcome.wait_status);
  return status <= kShellSignals || status > kShellSignals + kLastSignal;
}

Status StatusOf(const ShellOutcome& outcome, std::chrono::milliseconds timeout) {
  if (outcome.stopped) return {ErrorCode::kCancelled, "the hook was killed because the receiver stops"};
  if (outcome.timed_out)
    return {ErrorCode::kDeadline, Cat("the hook took longer than ", timeout.count(), " ms and was killed")};
  if (outcome.wait_status == 0) return OkStatus();
  const std::string how = WIFSIGNALED(outcome.wait_status)
                              ? Cat("died of signal ", WTERMSIG(outcome.wait_status))
                              : Cat("ended with status ", WEXITSTATUS(outcome.wait_status));
  const std::string said = outcome.output_tail.empty() ? "" : Cat("; it said: ", outcome.output_tail);
  return {ErrorCode::kAborted, Cat("the hook ", how, said)};
}

}  // namespace

Hook::Hook(HookOptions options) : options_(std::move(options)) {}

HookOutcome Hook::Notify(const HookEvent& event) {
  if (!configured()) return {OkStatus()};
  Status status;
  bool unchanged = true;
  auto backoff = options_.first_backoff;
  for (int attempt = 1; attempt <= options_.attempts; ++attempt, backoff = NextBackoff(backoff)) {
    const HookOutcome outcome = Attempt(event, attempt);
    status = outcome.status;
    if (status.ok() || status.code() == ErrorCode::kCancelled) return {status};
    unchanged = unchanged && outcome.unchanged;
    ++failures_;
    const bool last = attempt == options_.attempts;
    LogError(last ? "hook_failed" : "hook_attempt_failed", status,
             {{"model", event.model},
              {"run", ToHex(event.held.run)},
              {"version", event.held.version},
              {"attempt", attempt}});
    if (!last && stop_.Wait(backoff)) return {{ErrorCode::kCancelled, "the receiver stops"}};
  }
  const std::string what =
      Cat("version ", event.held.version, " of model ", event.model, ", after ", options_.attempts, " attempts");
  return {status.WithContext(what), unchanged};
}

HookOutcome Hook::Attempt(const HookEvent& event, int attempt) {
  const auto begin = std::chrono::steady_clock::now();
  const Result<ShellOutcome> run = RunShell(options_.command, EnvironmentOf(event), options_.timeout, stop_);
  if (!run.ok()) return {run.status()};
  const ShellOutcome& outcome = *run;
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  Status status = StatusOf(outcome, options_.timeout);
  if (status.ok()) {
    Log(LogLevel::kInfo, "hook_accepted",
        {{"model", event.model},
         {"run", ToHex(event.held.run)},
         {"version", event.held.version},
         {"attempt", attempt},
         {"duration_s", duration.count()},
         {"output", outcome.output_tail}});
  }
  return {status, Exited(outcome)};
}

void Hook::Cancel() {
  stop_.Set();
}

}  // namespace lockstep

#include "raas_receiver/engines/hook.h"

#include <poll.h>
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

// True when `stop` was set in the meantime.
bool SleepUnlessStopped(const StopSignal& stop, std::chrono::milliseconds time) {
  pollfd event{stop.fd(), POLLIN, 0};
  return ::poll(&event, 1, static_cast<int>(time.count())) > 0;
}

}  // namespace

Hook::Hook(HookOptions options) : options_(std::move(options)) {}

Status Hook::Notify(const HookEvent& event) {
  if (!configured()) return OkStatus();
  Status status;
  auto backoff = options_.first_backoff;
  for (int attempt = 1; attempt <= options_.attempts; ++attempt, backoff *= 2) {
    status = Attempt(event, attempt);
    if (status.ok() || status.code() == ErrorCode::kCancelled) return status;
    ++failures_;
    const bool last = attempt == options_.attempts;
    LogError(last ? "hook_failed" : "hook_attempt_failed", status,
             {{"model", event.model},
              {"run", ToHex(event.held.run)},
              {"version", event.held.version},
              {"attempt", attempt}});
    if (!last && SleepUnlessStopped(stop_, backoff)) return {ErrorCode::kCancelled, "the receiver stops"};
  }
  return status.WithContext(
      Cat("version ", event.held.version, " of model ", event.model, ", after ", options_.attempts, " attempts"));
}

Status Hook::Attempt(const HookEvent& event, int attempt) {
  const auto begin = std::chrono::steady_clock::now();
  LS_ASSIGN_OR_RETURN(const ShellOutcome outcome,
                      RunShell(options_.command, EnvironmentOf(event), options_.timeout, stop_));
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
  return status;
}

void Hook::Cancel() {
  stop_.Set();
}

}  // namespace lockstep

// The exec hook: a command that is told of every committed version, for engines that need a nudge to load it.
//
// It runs with LOCKSTEP_MODEL, LOCKSTEP_RUN (hex), LOCKSTEP_VERSION, LOCKSTEP_PATH (the published directory) and
// LOCKSTEP_MODE in its environment, after the version was verified and published. Exit status 0 means that the engine
// serves it, any other that it serves what it served before: tried again, then reported. After an attempt that was
// killed, or whose command died of a signal (which a shell also tells as 128 and its number), nobody knows.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "raas_receiver/engines/process.h"

namespace lockstep {

struct HookOptions {
  std::string command;  // for /bin/sh -c; empty: there is no hook
  std::chrono::milliseconds timeout{60'000};
  int attempts = 3;
  std::chrono::milliseconds first_backoff{200};  // doubled after every failed attempt, up to 10 s
};

struct HookEvent {
  std::string model;
  Held held;
  std::string path;
  std::string mode;
};

struct HookOutcome {
  Status status;
  bool unchanged = false;  // after an error: every attempt said that the engine serves what it served
};

// Notify is called by one thread at a time, everything else by any.
class Hook {
 public:
  explicit Hook(HookOptions options);

  bool configured() const { return !options_.command.empty(); }

  // Blocks until an attempt succeeded (OK) or all failed: kAborted for an exit status or a signal, kDeadline for a
  // timeout, with the end of its output. kCancelled after Cancel.
  HookOutcome Notify(const HookEvent& event);

  // Kills a running command; no other is started.
  void Cancel();

  uint64_t failures() const { return failures_; }  // failed attempts

 private:
  HookOutcome Attempt(const HookEvent& event, int attempt);

  const HookOptions options_;
  StopSignal stop_;
  std::atomic<uint64_t> failures_ = 0;
};

}  // namespace lockstep

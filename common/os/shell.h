// Runs a child process with a time limit, and waits for its end and its output.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/os/event.h"

namespace lockstep::os {

struct ShellOutcome {
  int wait_status = 0;      // as waitpid() says; 0 is success
  bool timed_out = false;   // killed because it took too long
  bool stopped = false;     // killed because of the Event
  std::string output_tail;  // the last bytes of stdout and stderr, without the last line break
};

inline constexpr size_t kOutputTail = 4096;

// Runs `/bin/sh -c command` in a process group of its own, with this process' environment and `environment`
// ("NAME=value") added. What deploy/bundle's launcher set aside as LOCKSTEP_HOST_<NAME> is <NAME> there. When `timeout`
// passes or `stop` is set, the whole group is killed. What it leaves in the background after a normal end lives on. An
// error means that it could not be started. `tail_bytes` of its output are kept.
Result<ShellOutcome> RunShell(const std::string& command, const std::vector<std::string>& environment,
                              std::chrono::milliseconds timeout, const Event& stop, size_t tail_bytes = kOutputTail);

}  // namespace lockstep::os

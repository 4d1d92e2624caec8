// Signals of a daemon as something that its main thread waits for, instead of handlers that interrupt anything
// anywhere.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/os/deadline.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {

// Move-only; used by one thread.
class SignalWaiter {
 public:
  using Ignored = std::function<void(const std::string& signal)>;  // "SIGHUP"

  // Blocks SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 in this thread and those it starts from now on. Ignores SIGPIPE
  // and SIGXFSZ: what was being written fails, with EPIPE or EFBIG. `ignored` is called by Wait.
  // REQUIRES to be called in main() before any thread is started. Child processes inherit the blocked mask: the caller
  // that starts one resets it (POSIX_SPAWN_SETSIGMASK, POSIX_SPAWN_SETSIGDEF).
  static Result<SignalWaiter> Create(Ignored ignored);

  // Whether SIGTERM or SIGINT came before `timeout` passed (kForever waits for one). Each other signal that came is
  // told to `ignored`: Slurm and PyTorch Lightning send SIGUSR1 and SIGUSR2 to every process of a job's step.
  bool Wait(std::chrono::milliseconds timeout = kForever);

 private:
  SignalWaiter(UniqueFd fd, Ignored ignored) : fd_(std::move(fd)), ignored_(std::move(ignored)) {}

  UniqueFd fd_;
  Ignored ignored_;
};

}  // namespace lockstep::os

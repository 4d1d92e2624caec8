// Signals of a daemon as values that its main thread waits for, instead of handlers that interrupt anything anywhere.
#pragma once

#include <chrono>
#include <optional>

#include "common/base/status.h"
#include "common/os/deadline.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {

// Move-only; used by one thread.
class SignalWaiter {
 public:
  // Blocks SIGTERM, SIGINT and SIGHUP in this thread and those it starts from now on, and ignores SIGPIPE.
  // REQUIRES to be called in main() before any thread is started. Child processes inherit the blocked mask: the caller
  // that starts one resets it (POSIX_SPAWN_SETSIGMASK, POSIX_SPAWN_SETSIGDEF).
  static Result<SignalWaiter> Create();

  // The next of the three signals, or nothing when `timeout` passed (kForever waits for one).
  std::optional<int> Wait(std::chrono::milliseconds timeout = kForever);

 private:
  explicit SignalWaiter(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace lockstep::os

#include "common/os/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep::os {

Result<SignalWaiter> SignalWaiter::Create() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return ErrnoStatus(error, "block signals");
  }
  if (::signal(SIGPIPE, SIG_IGN) == SIG_ERR) return ErrnoStatus(errno, "ignore SIGPIPE");
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, "make a signalfd");
  return SignalWaiter(std::move(fd));
}

std::optional<int> SignalWaiter::Wait(std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  while (true) {
    signalfd_siginfo info;
    if (::read(fd_.get(), &info, sizeof info) == sizeof info) return static_cast<int>(info.ssi_signo);
    pollfd poll_fd{fd_.get(), POLLIN, 0};
    if (::poll(&poll_fd, 1, deadline.PollTimeoutMs()) == 0) return std::nullopt;
  }
}

}  // namespace lockstep::os

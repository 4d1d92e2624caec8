#include "common/os/signals.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/text.h"

namespace lockstep::os {

Result<SignalWaiter> SignalWaiter::Create(Ignored ignored) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) {
    return ErrnoStatus(error, "block signals");
  }
  for (const int signal : {SIGPIPE, SIGXFSZ}) {
    if (::signal(signal, SIG_IGN) == SIG_ERR) return ErrnoStatus(errno, Cat("ignore SIG", ::sigabbrev_np(signal)));
  }
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, "make a signalfd");
  return SignalWaiter(std::move(fd), std::move(ignored));
}

bool SignalWaiter::Wait(std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  while (true) {
    signalfd_siginfo info;
    if (::read(fd_.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGTERM || signal == SIGINT) return true;
      ignored_(Cat("SIG", ::sigabbrev_np(signal)));
      continue;
    }
    pollfd poll_fd{fd_.get(), POLLIN, 0};
    if (::poll(&poll_fd, 1, deadline.PollTimeoutMs()) == 0) return false;
  }
}

}  // namespace lockstep::os

#include "common/os/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>

namespace lockstep::os {
namespace {

// Descriptors plus one; 0 is a free place. A handler of fork() gets no argument and may take no lock: hence a global,
// and a table.
std::array<std::atomic<int>, 64> guarded;

// How many forks lie between this process and the first that had a guard.
std::atomic<uint64_t> forks;

void CloseInChild() {
  ++forks;
  for (auto& slot : guarded) {
    const int fd = slot.exchange(0) - 1;  // the child's own place from here on, and in time its number
    if (fd < 0) continue;
    ::close(fd);  // first: there may be no other descriptor to have
    const int nothing = ::eventfd(0, EFD_CLOEXEC);
    if (nothing < 0 || nothing == fd) continue;
    ::dup3(nothing, fd, O_CLOEXEC);
    ::close(nothing);
  }
}

}  // namespace

ForkGuard::ForkGuard(int fd) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, CloseInChild);
  if (registered != 0) return;
  for (auto& slot : guarded) {
    int free = 0;
    if (!slot.compare_exchange_strong(free, fd + 1)) continue;
    slot_ = &slot;
    forks_ = forks;
    return;
  }
}

ForkGuard::~ForkGuard() {
  if (slot_ != nullptr && forks_ == forks) *slot_ = 0;  // else a fork's copy: its place may be another's
}

}  // namespace lockstep::os

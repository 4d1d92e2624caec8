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

void CloseInChild() {
  for (const auto& slot : guarded) {
    if (slot == 0) continue;
    ::close(slot - 1);  // first: there may be no other descriptor to have
    const int nothing = ::eventfd(0, EFD_CLOEXEC);
    if (nothing < 0 || nothing == slot - 1) continue;
    ::dup3(nothing, slot - 1, O_CLOEXEC);
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
    return;
  }
}

ForkGuard::~ForkGuard() {
  if (slot_ != nullptr) *slot_ = 0;
}

}  // namespace lockstep::os

// ForkGuard: keeps a connection out of the processes that are forked off this one.
//
// A child that runs no other program has every descriptor of its parent, O_CLOEXEC or not, and with a socket the
// connection: for the peer the parent would not end before its last child. In a child of fork() the number of a guarded
// descriptor refers to nothing of use; it stays taken, so that the child's copy of its owner closes no other file. The
// child guards nothing then but what it comes to guard itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace lockstep::os {

// Move-only; to be gone before the descriptor is closed. Of a process's first 64 at a time: more are not guarded.
class ForkGuard {
 public:
  ForkGuard() = default;  // guards nothing
  explicit ForkGuard(int fd);
  ForkGuard(ForkGuard&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)), forks_(other.forks_) {}
  ForkGuard& operator=(ForkGuard&& other) noexcept {
    std::swap(slot_, other.slot_);
    std::swap(forks_, other.forks_);
    return *this;
  }
  ~ForkGuard();

 private:
  std::atomic<int>* slot_ = nullptr;
  uint64_t forks_ = 0;  // of the process that made it: a copy in a child guards nothing
};

}  // namespace lockstep::os

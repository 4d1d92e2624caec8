// Sole owner of a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace lockstep::os {

// Move-only. Closes on destruction; a close that fails is not reported (write paths that care call fsync first).
class UniqueFd {
 public:
  UniqueFd() = default;  // owns nothing
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = other.Release();
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  bool valid() const { return fd_ >= 0; }
  int get() const { return fd_; }

  // The caller owns the descriptor from here on.
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) ::close(Release());
  }

 private:
  int fd_ = -1;
};

}  // namespace lockstep::os

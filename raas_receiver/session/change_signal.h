// ChangeSignal: wakes the threads that wait for something of a session.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>

#include "common/base/mutex.h"

namespace lockstep::session {

// Thread-safe. Guards nothing: what is waited for has locks of its own, none of which is held while waiting, and none
// of which may be needed to notify.
class ChangeSignal {
 public:
  // To be called after the change, by the thread that made it.
  void Notify() {
    {
      MutexLock lock(mutex_);
      ++changes_;
    }
    changed_.notify_all();
  }

  // Waits until `done()`, which is called once at first and then after every change. False when it was still not after
  // `timeout`.
  template <typename Done>
  bool WaitFor(std::chrono::milliseconds timeout, Done done) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (true) {
      const uint64_t seen = changes();
      if (done()) return true;
      const auto left = until - std::chrono::steady_clock::now();
      if (left.count() <= 0 || !WaitPast(seen, left)) return false;
    }
  }

  // How many changes there were.
  uint64_t changes() const {
    MutexLock lock(mutex_);
    return changes_;
  }
  // Waits until there were more than `seen`. False when there were not after `timeout`.
  bool WaitPast(uint64_t seen, std::chrono::nanoseconds timeout) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&]() LS_REQUIRES(mutex_) { return changes_ != seen; });
  }

 private:
  mutable Mutex mutex_;
  std::condition_variable changed_;
  uint64_t changes_ LS_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::session

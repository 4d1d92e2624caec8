// Mutex and MutexLock: std::mutex and std::unique_lock, with the attributes by which clang checks who holds what.
//
// A field says which mutex guards it (LS_GUARDED_BY), a private function which one its caller holds (LS_REQUIRES).
// tests/checks/tidy.py has clang check both. Other compilers see no attribute.
#pragma once

#include <mutex>

#if defined(__clang__)
#define LS_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LS_THREAD_ATTRIBUTE(x)
#endif

// Of a field: it is read and written while `mutex` is held.
#define LS_GUARDED_BY(mutex) LS_THREAD_ATTRIBUTE(guarded_by(mutex))
// Of a function or lambda: the caller holds these mutexes.
#define LS_REQUIRES(...) LS_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
// Of a function: the caller holds none of these mutexes, which the function takes.
#define LS_EXCLUDES(...) LS_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// Of a function that clang cannot follow. A comment beside it says why, and which mutex is held.
#define LS_NO_THREAD_SAFETY_ANALYSIS LS_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace lockstep {

class LS_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds `mutex` for as long as it lives, but between unlock() and lock(). A std::condition_variable waits on it as on a
// std::unique_lock; the condition is a lambda with LS_REQUIRES.
class LS_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LS_THREAD_ATTRIBUTE(acquire_capability(mutex)) : lock_(mutex.mutex_) {}
  ~MutexLock() LS_THREAD_ATTRIBUTE(release_capability()) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() LS_THREAD_ATTRIBUTE(release_capability()) { lock_.unlock(); }
  void lock() LS_THREAD_ATTRIBUTE(acquire_capability()) { lock_.lock(); }
  operator std::unique_lock<std::mutex>&() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace lockstep

// A wait that a stop ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <stop_token>

#include "common/base/mutex.h"

namespace lockstep {

// Waits for `time`, or until a stop is requested: then true.
inline bool WaitForStop(std::chrono::nanoseconds time, const std::stop_token& stop) {
  Mutex mutex;
  std::condition_variable_any stopped;
  MutexLock lock(mutex);
  stopped.wait_for(lock, stop, time, []() LS_REQUIRES(mutex) { return false; });
  return stop.stop_requested();
}

}  // namespace lockstep

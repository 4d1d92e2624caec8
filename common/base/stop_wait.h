// A wait that a stop ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

namespace lockstep {

// Waits for `time`, or until a stop is requested: then true.
inline bool WaitForStop(std::chrono::nanoseconds time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait_for(lock, stop, time, [] { return false; });
  return stop.stop_requested();
}

}  // namespace lockstep

// How tests wait for what another thread does.
#pragma once

#include <chrono>
#include <thread>

namespace lockstep {

// Whether `condition` comes true within a minute, which no loaded machine exceeds.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace lockstep

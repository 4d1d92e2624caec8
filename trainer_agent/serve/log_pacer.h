// LogPacer: says of what is found again and again whether it is to be logged: once a minute for each key.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>

namespace lockstep::serve {

// Thread-safe. Knows a bounded number of keys; beyond that nothing is logged until a minute of one is over.
class LogPacer {
 public:
  using Clock = std::chrono::steady_clock;

  bool Due(const std::string& key, Clock::time_point now = Clock::now()) {
    std::lock_guard lock(mutex_);
    std::erase_if(logged_, [&](const auto& item) { return now - item.second >= kInterval; });
    return logged_.size() < kMaxKeys && logged_.emplace(key, now).second;
  }

 private:
  static constexpr std::chrono::minutes kInterval{1};
  static constexpr size_t kMaxKeys = 256;

  std::mutex mutex_;
  std::map<std::string, Clock::time_point> logged_;
};

}  // namespace lockstep::serve

// LogLimit: when something that strangers can cause as often as they like is worth a line of log: at once, and from
// then on once a minute for each of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "common/base/mutex.h"

namespace lockstep::telemetry {

// Thread-safe.
class LogLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::minutes kPeriod{1};
  // Peers beyond so many in a minute are one.
  static constexpr size_t kMostPeers = 1024;

  // How often it has happened to `peer` since the last line, this time included; 0: no line is due.
  uint64_t Count(std::string peer, Clock::time_point now = Clock::now());

 private:
  struct Counted {
    Clock::time_point last_line;
    uint64_t since = 0;
  };
  Mutex mutex_;
  std::map<std::string, Counted> peers_ LS_GUARDED_BY(mutex_);
};

}  // namespace lockstep::telemetry

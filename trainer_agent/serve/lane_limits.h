// The rates that lanes keep: all of them together, and those of one receiver together.
#pragma once

#include <chrono>
#include <compare>
#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/net/rate_limit.h"

namespace lockstep::serve {

// LanePace: one lane's share of the rates. Used by one coroutine.
class LanePace {
 public:
  LanePace(std::shared_ptr<net::RateLimit> all, std::shared_ptr<net::RateLimit> receiver)
      : all_(std::move(all)), receiver_(std::move(receiver)) {}
  LanePace(LanePace&& other) noexcept = default;
  ~LanePace();  // returns what was booked and not sent

  // How long to wait before `bytes` may be sent. What was booked and not sent counts for the next time.
  net::RateLimit::Clock::duration Book(uint64_t bytes);
  void Sent(uint64_t bytes);

 private:
  std::shared_ptr<net::RateLimit> all_;  // null: moved from
  std::shared_ptr<net::RateLimit> receiver_;
  uint64_t booked_ = 0;
};

// Thread-safe.
class LaneLimits {
 public:
  // Bytes a second, 0: no limit.
  LaneLimits(uint64_t all, uint64_t per_receiver)
      : all_(std::make_shared<net::RateLimit>(all)), per_receiver_(per_receiver) {}

  // A receiver, as rates count it: another may have the same name, or the same owner.
  struct Receiver {
    std::string owner;
    std::string name;

    auto operator<=>(const Receiver&) const = default;
  };
  LanePace PaceOf(const Receiver& receiver);

 private:
  const std::shared_ptr<net::RateLimit> all_;
  const uint64_t per_receiver_;
  Mutex mutex_;
  std::map<Receiver, std::weak_ptr<net::RateLimit>> receivers_
      LS_GUARDED_BY(mutex_);  // those that have lanes, and some that had
};

}  // namespace lockstep::serve

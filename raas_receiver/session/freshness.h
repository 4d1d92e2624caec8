// Freshness: for how long a session has been behind its origin without getting on.
#pragma once

#include <chrono>

#include "common/base/ids.h"

namespace lockstep::session {

// Used by one thread.
class Freshness {
 public:
  using Clock = std::chrono::steady_clock;

  // `limit` zero: nothing is ever too old.
  explicit Freshness(std::chrono::milliseconds limit) : limit_(limit) {}

  // To be called now and then. False when the origin has had another version than `held`, and `held` was the same, for
  // longer than the limit.
  bool Update(const VersionRef& held, bool behind, Clock::time_point now = Clock::now()) {
    if (!behind || held != held_ || !behind_) since_ = now;
    held_ = held;
    behind_ = behind;
    return limit_.count() == 0 || now - since_ <= limit_;
  }

 private:
  const std::chrono::milliseconds limit_;
  VersionRef held_;
  bool behind_ = false;
  Clock::time_point since_;
};

}  // namespace lockstep::session

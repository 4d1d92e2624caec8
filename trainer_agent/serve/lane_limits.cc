#include "trainer_agent/serve/lane_limits.h"

#include <algorithm>

namespace lockstep::serve {

LanePace::~LanePace() {
  if (all_ == nullptr) return;
  all_->GiveBack(booked_);
  receiver_->GiveBack(booked_);
}

net::RateLimit::Clock::duration LanePace::Book(uint64_t bytes) {
  if (bytes <= booked_) return {};
  const uint64_t more = bytes - booked_;
  booked_ = bytes;
  return std::max(all_->Book(more), receiver_->Book(more));
}

void LanePace::Sent(uint64_t bytes) {
  booked_ -= std::min(booked_, bytes);
}

LanePace LaneLimits::PaceOf(const Receiver& receiver) {
  if (per_receiver_ == 0) return {all_, std::make_shared<net::RateLimit>(0)};
  MutexLock lock(mutex_);
  std::erase_if(receivers_, [](const auto& item) { return item.second.expired(); });
  auto limit = receivers_[receiver].lock();
  if (limit == nullptr) {
    limit = std::make_shared<net::RateLimit>(per_receiver_);
    receivers_[receiver] = limit;
  }
  return {all_, limit};
}

}  // namespace lockstep::serve

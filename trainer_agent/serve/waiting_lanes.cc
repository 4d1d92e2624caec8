#include "trainer_agent/serve/waiting_lanes.h"

#include <algorithm>

namespace lockstep::serve {

WaitingLanes::Place WaitingLanes::Enter(const asio::ip::address& address, Leave leave) {
  Leave put_out;
  std::unique_lock lock(mutex_);
  if (const auto other = InTheWayOf(address); other != waiting_.end()) {
    put_out = std::move(other->second.leave);
    waiting_.erase(other);
  }
  const uint64_t number = next_++;
  waiting_.emplace(number, Waiting{address, std::move(leave)});
  lock.unlock();
  if (put_out) put_out();
  return {this, number};
}

WaitingLanes::Map::iterator WaitingLanes::InTheWayOf(const asio::ip::address& address) {
  const auto same = [&](const Map::value_type& one) { return one.second.address == address; };
  const auto alike = static_cast<size_t>(std::count_if(waiting_.begin(), waiting_.end(), same));
  if (alike >= limits_.per_address) return std::find_if(waiting_.begin(), waiting_.end(), same);
  return waiting_.size() >= limits_.all ? waiting_.begin() : waiting_.end();
}

void WaitingLanes::Free(uint64_t number) {
  std::lock_guard lock(mutex_);
  waiting_.erase(number);
}

bool WaitingLanes::Has(uint64_t number) {
  std::lock_guard lock(mutex_);
  return waiting_.contains(number);
}

}  // namespace lockstep::serve

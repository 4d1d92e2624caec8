#include "common/net/connection_slots.h"

#include <algorithm>

namespace lockstep::net {

ConnectionSlots::Slot ConnectionSlots::Enter(const asio::ip::address& address, Leave leave) {
  Leave put_out;
  MutexLock lock(mutex_);
  if (const auto other = InTheWayOf(address); other != taken_.end()) {
    put_out = std::move(other->second.leave);
    taken_.erase(other);
  }
  const uint64_t number = next_++;
  taken_.emplace(number, TakenSlot{address, std::move(leave)});
  lock.unlock();
  if (put_out) put_out();
  return {this, number};
}

size_t ConnectionSlots::taken() const {
  MutexLock lock(mutex_);
  return taken_.size();
}

ConnectionSlots::Map::iterator ConnectionSlots::InTheWayOf(const asio::ip::address& address) {
  std::map<asio::ip::address, size_t> counts;
  for (const auto& [number, one] : taken_) ++counts[one.address];
  const bool too_many_alike = counts[address] >= limits_.per_address;
  if (!too_many_alike && taken_.size() < limits_.all) return taken_.end();
  const auto fewer = [](const auto& one, const auto& other) { return one.second < other.second; };
  const asio::ip::address& displaced = too_many_alike ? address : std::ranges::max_element(counts, fewer)->first;
  return std::ranges::find_if(taken_, [&](const Map::value_type& one) { return one.second.address == displaced; });
}

void ConnectionSlots::Free(uint64_t number) {
  MutexLock lock(mutex_);
  taken_.erase(number);
}

bool ConnectionSlots::Has(uint64_t number) {
  MutexLock lock(mutex_);
  return taken_.contains(number);
}

}  // namespace lockstep::net

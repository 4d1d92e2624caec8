#include "common/net/places.h"

#include <algorithm>

namespace lockstep::net {

Places::Place Places::Enter(const asio::ip::address& address, Leave leave) {
  Leave put_out;
  MutexLock lock(mutex_);
  if (const auto other = InTheWayOf(address); other != taken_.end()) {
    put_out = std::move(other->second.leave);
    taken_.erase(other);
  }
  const uint64_t number = next_++;
  taken_.emplace(number, Taken{address, std::move(leave)});
  lock.unlock();
  if (put_out) put_out();
  return {this, number};
}

size_t Places::taken() const {
  MutexLock lock(mutex_);
  return taken_.size();
}

Places::Map::iterator Places::InTheWayOf(const asio::ip::address& address) {
  std::map<asio::ip::address, size_t> counts;
  for (const auto& [number, one] : taken_) ++counts[one.address];
  const bool too_many_alike = counts[address] >= limits_.per_address;
  if (!too_many_alike && taken_.size() < limits_.all) return taken_.end();
  const auto fewer = [](const auto& one, const auto& other) { return one.second < other.second; };
  const asio::ip::address& displaced = too_many_alike ? address : std::ranges::max_element(counts, fewer)->first;
  return std::ranges::find_if(taken_, [&](const Map::value_type& one) { return one.second.address == displaced; });
}

void Places::Free(uint64_t number) {
  MutexLock lock(mutex_);
  taken_.erase(number);
}

bool Places::Has(uint64_t number) {
  MutexLock lock(mutex_);
  return taken_.contains(number);
}

}  // namespace lockstep::net

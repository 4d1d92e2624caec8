#include "trainer_agent/run/interval_set.h"

#include <algorithm>
#include <iterator>

namespace lockstep::run {

bool IntervalSet::Overlaps(uint64_t begin, uint64_t end) const {
  const auto after = ends_.lower_bound(end);
  return after != ends_.begin() && std::prev(after)->second > begin;
}

bool IntervalSet::Contains(uint64_t begin, uint64_t end) const {
  const auto after = ends_.upper_bound(begin);
  return after != ends_.begin() && std::prev(after)->second >= end;
}

void IntervalSet::Insert(uint64_t begin, uint64_t end) {
  auto after = ends_.lower_bound(end);
  if (after != ends_.end() && after->first == end) {
    end = after->second;
    after = ends_.erase(after);
  }
  if (after != ends_.begin() && std::prev(after)->second == begin) {
    std::prev(after)->second = end;
  } else {
    ends_.emplace_hint(after, begin, end);
  }
}

std::vector<std::pair<uint64_t, uint64_t>> IntervalSet::Cut(uint64_t begin, uint64_t end) {
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  auto at = ends_.upper_bound(begin);
  if (at != ends_.begin()) --at;
  while (at != ends_.end() && at->first < end) {
    const auto [start, stop] = *at;
    if (stop <= begin) {
      ++at;
      continue;
    }
    at = ends_.erase(at);
    if (start < begin) ends_.emplace_hint(at, start, begin);
    if (stop > end) at = ends_.emplace_hint(at, end, stop);
    taken.emplace_back(std::max(start, begin), std::min(stop, end));
  }
  return taken;
}

uint64_t IntervalSet::FirstMissing() const {
  return ends_.empty() || ends_.begin()->first > 0 ? 0 : ends_.begin()->second;
}

}  // namespace lockstep::run

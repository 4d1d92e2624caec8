// IntervalSet: a set of numbers kept as disjoint half-open intervals, neighbours merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace lockstep::run {

// Not thread-safe. Each call costs the logarithm of size(), Cut() also what it takes out.
class IntervalSet {
 public:
  bool Overlaps(uint64_t begin, uint64_t end) const;  // REQUIRES begin < end
  bool Contains(uint64_t begin, uint64_t end) const;  // every number of [begin, end). REQUIRES begin < end
  void Insert(uint64_t begin, uint64_t end);          // REQUIRES begin < end and !Overlaps(begin, end)
  // Takes out what lies in [begin, end) and returns it, in order.
  std::vector<std::pair<uint64_t, uint64_t>> Cut(uint64_t begin, uint64_t end);

  // The smallest number that is not in the set.
  uint64_t FirstMissing() const;
  size_t size() const { return ends_.size(); }

  bool operator==(const IntervalSet&) const = default;

 private:
  std::map<uint64_t, uint64_t> ends_;  // begin -> end
};

}  // namespace lockstep::run

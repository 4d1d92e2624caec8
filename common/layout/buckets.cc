#include "common/layout/buckets.h"

namespace lockstep::layout {

std::vector<Bucket> SplitIntoBuckets(std::span<const BucketItem> items, uint64_t bucket_bytes) {
  std::vector<Bucket> buckets;
  const auto has_room = [&](uint64_t bytes) {
    return !buckets.empty() && bytes <= bucket_bytes - buckets.back().bytes;
  };
  for (size_t begin = 0; begin < items.size();) {
    size_t end = begin;
    uint64_t group_bytes = 0;
    for (; end < items.size() && items[end].group == items[begin].group; ++end) group_bytes += items[end].bytes;
    // A group that fits a bucket of its own, but not this one, starts a new one.
    if (group_bytes <= bucket_bytes && !has_room(group_bytes)) buckets.push_back({begin, begin, 0});
    for (; begin < end; ++begin) {
      if (!has_room(items[begin].bytes)) buckets.push_back({begin, begin, 0});
      buckets.back().end = begin + 1;
      buckets.back().bytes += items[begin].bytes;
    }
  }
  return buckets;
}

}  // namespace lockstep::layout

// Buckets: a long list of items cut, in order, into messages of bounded size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::layout {

struct BucketItem {
  uint64_t bytes = 0;
  uint32_t group = 0;  // neighbours of one group stay together: q/k/v, gate/up, q_a/kv_a of a layer
};

// Items [begin, end) of a bucket.
struct Bucket {
  size_t begin = 0;
  size_t end = 0;
  uint64_t bytes = 0;
};

// Packs `items` in their order into buckets of at most `bucket_bytes`. A group that alone is larger is cut between its
// items. REQUIRES every item to be at most bucket_bytes (AppendSplit cuts larger ones). No item, no bucket.
std::vector<Bucket> SplitIntoBuckets(std::span<const BucketItem> items, uint64_t bucket_bytes);

}  // namespace lockstep::layout

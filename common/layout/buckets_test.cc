#include "common/layout/buckets.h"

#include <catch2/catch.hpp>

#include "common/layout/layout_testing.h"

namespace lockstep::layout {
namespace {

std::vector<std::pair<size_t, size_t>> Ranges(const std::vector<Bucket>& buckets) {
  std::vector<std::pair<size_t, size_t>> ranges;
  for (const Bucket& bucket : buckets) ranges.emplace_back(bucket.begin, bucket.end);
  return ranges;
}

TEST_CASE("Nothing to send needs no bucket") {
  CHECK(SplitIntoBuckets({}, 100).empty());
}

TEST_CASE("A group that does not fit the rest of a bucket starts the next one") {
  const std::vector<BucketItem> items{{40, 1}, {40, 2}, {30, 2}, {30, 3}};
  const std::vector<Bucket> buckets = SplitIntoBuckets(items, 100);
  CHECK(Ranges(buckets) == std::vector<std::pair<size_t, size_t>>{{0, 1}, {1, 4}});
  CHECK(buckets[0].bytes == 40);
  CHECK(buckets[1].bytes == 100);
}

TEST_CASE("A group larger than a bucket is cut between its items") {
  const std::vector<BucketItem> items{{60, 7}, {60, 7}, {60, 7}};
  CHECK(Ranges(SplitIntoBuckets(items, 120)) == std::vector<std::pair<size_t, size_t>>{{0, 2}, {2, 3}});
}

TEST_CASE("The same number further on is another group") {
  const std::vector<BucketItem> items{{50, 1}, {40, 2}, {50, 1}};
  CHECK(Ranges(SplitIntoBuckets(items, 100)) == std::vector<std::pair<size_t, size_t>>{{0, 2}, {2, 3}});
}

TEST_CASE("Random items: buckets hold all of them in order, never overflow, and never cut a group that fits") {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const uint64_t limit = random.Between(1, 50);
    std::vector<BucketItem> items(random.Between(0, 40));
    uint32_t group = 0;
    for (BucketItem& item : items) {
      group += random.OneIn(3);
      item = {random.Between(0, limit), group};
    }
    const std::vector<Bucket> buckets = SplitIntoBuckets(items, limit);
    size_t at = 0;
    bool good = true;
    for (const Bucket& bucket : buckets) {
      uint64_t bytes = 0;
      good = good && bucket.begin == at && bucket.end > at;
      for (; at < bucket.end; ++at) bytes += items[at].bytes;
      good = good && bytes == bucket.bytes && bytes <= limit;
      if (at == items.size() || items[at - 1].group != items[at].group) continue;
      uint64_t group_bytes = 0;
      for (const BucketItem& item : items) group_bytes += item.group == items[at].group ? item.bytes : 0;
      good = good && group_bytes > limit;
    }
    REQUIRE(good);
    REQUIRE(at == items.size());
  }
}

}  // namespace
}  // namespace lockstep::layout

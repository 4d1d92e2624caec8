#include "common/layout/piece.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/layout/layout_testing.h"

namespace lockstep::layout {
namespace {

constexpr uint64_t kCases = 3000;

TEST_CASE("Whole, ShardOf and Box say what they are called") {
  CHECK(Whole({4, 6}) == Pieces{{{0, 0}, {0, 0}, {4, 6}}});
  CHECK(ShardOf({4, 6}, 1, 2, 3) == Pieces{{{0, 0}, {0, 4}, {4, 2}}});
  CHECK(Box({1}, {5}, {2}) == Pieces{{{1}, {5}, {2}}});
  CHECK(ElementCount(Extents{}) == 1);
  CHECK(ElementCount(Extents{4, 0, 9}) == 0);
  CHECK(ElementCount(Pieces{{{0}, {0}, {3}}, {{3}, {5}, {4}}}) == 7);
}

// Two query groups of one head each, head dim 2: rows of the fused tensor are q0 q0 k0 k0 v0 v0 q1 q1 k1 k1 v1 v1. The
// second of two shards has the second group.
TEST_CASE("A shard of a fused QKV reaches the key projection where its group lies") {
  const Pieces shard = ShardOf({12, 8}, 0, 1, 2);
  const Pieces key{{{2, 0}, {0, 0}, {2, 8}}, {{8, 0}, {2, 0}, {2, 8}}};
  CHECK(Compose(shard, key) == Pieces{{{2, 0}, {2, 0}, {2, 8}}});
}

TEST_CASE("Rows of a padded vocabulary go nowhere") {
  const Pieces trim = Box({0, 0}, {0, 0}, {10, 4});
  CHECK(Compose(ShardOf({16, 4}, 0, 1, 2), trim) == Pieces{{{0, 0}, {8, 0}, {2, 4}}});
  CHECK(Compose(ShardOf({16, 4}, 0, 3, 4), trim).empty());
}

TEST_CASE("A scalar is one element, and composes") {
  CHECK(Compose(Whole({}), Whole({})) == Whole({}));
  CHECK(Normalize(Whole({})) == Whole({}));
  CHECK(CheckTiling(Whole({}), {}).ok());
  CHECK_THAT(CheckTiling({}, {}), FailsWith(ErrorCode::kBadData, "nothing covers 1 of 1 elements, the first at []"));
}

TEST_CASE("Normalize drops what is empty and joins neighbours that move alike") {
  const Pieces pieces{{{2, 0}, {6, 0}, {2, 4}}, {{9, 9}, {1, 1}, {0, 3}}, {{0, 0}, {4, 0}, {2, 4}}};
  CHECK(Normalize(pieces) == Pieces{{{0, 0}, {4, 0}, {4, 4}}});
  const Pieces apart{{{0}, {4}, {2}}, {{8}, {6}, {2}}};
  CHECK(Normalize(apart) == apart);
}

TEST_CASE("Normalize keeps boxes whole next to others that end before them") {
  const Piece longer{{0, 0, 0}, {0, 0, 0}, {2, 10, 2}};
  const Piece shorter{{0, 0, 4}, {0, 0, 4}, {1, 5, 2}};
  CHECK(Normalize({shorter, longer}) == Pieces{longer, shorter});
}

TEST_CASE("A piece that leaves its tensor is refused, with its box") {
  CHECK(CheckBounds(Box({2, 0}, {0, 4}, {2, 4}), {4, 4}, {2, 8}).ok());
  CHECK_THAT(CheckBounds(Box({3, 0}, {0, 4}, {2, 4}), {4, 4}, {2, 8}),
             FailsWith(ErrorCode::kBadData, "piece 0: its source box [3:5, 0:4] leaves the tensor of shape [4, 4]"));
  CHECK_THAT(CheckBounds(Box({2, 0}, {0, 5}, {2, 4}), {4, 4}, {2, 8}),
             FailsWith(ErrorCode::kBadData, "target box [0:2, 5:9] leaves the tensor of shape [2, 8]"));
  CHECK_THAT(CheckBounds(Box({0}, {0, 0}, {1, 1}), {4, 4}, {4, 4}),
             FailsWith(ErrorCode::kBadData, "source box has 1 dimensions"));
  CHECK_THAT(CheckBounds(Box({0, 0}, {0, 0}, {1}), {4, 4}, {4, 4}), FailsWith(ErrorCode::kBadData, "its size 1"));
}

TEST_CASE("Numbers near the end of 64 bits do not wrap into bounds") {
  const uint64_t most = ~uint64_t{0};
  CHECK_THAT(CheckBounds(Box({most}, {0}, {2}), {4}, {4}),
             FailsWith(ErrorCode::kBadData, "source box [18446744073709551615:1] leaves the tensor of shape [4]"));
  CHECK_THAT(CheckBounds(Box({2}, {0}, {most}), {4}, {4}),
             FailsWith(ErrorCode::kBadData, "source box [2:1] leaves the tensor of shape [4]"));
  CHECK_THAT(CheckBounds(Box({0}, {most - 1}, {4}), {4}, {4}),
             FailsWith(ErrorCode::kBadData, "target box [18446744073709551614:2] leaves the tensor of shape [4]"));
}

TEST_CASE("An overlap is named with both pieces, a hole with its size and first element") {
  const Pieces overlapping{{{}, {0, 0}, {4, 4}}, {{}, {4, 0}, {4, 8}}, {{}, {2, 3}, {2, 5}}};
  CHECK(CheckTiling(overlapping, {8, 8}).message() == "pieces 0 and 2 overlap in [2:4, 3:4]");
  const Pieces incomplete{{{}, {0, 0}, {4, 8}}, {{}, {4, 0}, {4, 3}}};
  CHECK(CheckTiling(incomplete, {8, 8}).message() == "nothing covers 20 of 64 elements, the first at [4, 3]");
  CHECK(CheckTiling(incomplete, {8, 8}).code() == ErrorCode::kBadData);
}

TEST_CASE("A tensor without elements is tiled by nothing") {
  CHECK(CheckTiling({}, {4, 0}).ok());
  CHECK(CheckTiling(Box({0, 0}, {2, 0}, {2, 0}), {4, 0}).ok());
}

TEST_CASE("Five boxes around a middle one, which no straight cut divides, are a tiling") {
  const Pieces pinwheel{
      {{}, {0, 0}, {1, 2}}, {{}, {0, 2}, {2, 1}}, {{}, {2, 1}, {1, 2}}, {{}, {1, 0}, {2, 1}}, {{}, {1, 1}, {1, 1}}};
  CHECK(CheckTiling(pinwheel, {3, 3}).ok());
}

TEST_CASE("Random relations: Compose is what following each element gives") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const size_t rank = random.Between(0, 3);
    const Extents a = random.Shape(rank, 6), b = random.Shape(rank, 6), c = random.Shape(rank, 6);
    const Pieces first = RandomRelation(random, a, b);
    const Pieces second = RandomRelation(random, b, c);
    const std::vector<uint64_t> to_a = ElementMap(first, a, b);
    std::vector<uint64_t> expected = ElementMap(second, b, c);
    for (uint64_t& element : expected) element = element == kNoElement ? kNoElement : to_a[element];
    REQUIRE(ElementMap(Compose(first, second), a, c) == expected);
  }
}

TEST_CASE("Random relations: Compose is associative") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const size_t rank = random.Between(1, 3);
    const Extents a = random.Shape(rank, 6), b = random.Shape(rank, 6), c = random.Shape(rank, 6),
                  d = random.Shape(rank, 6);
    const Pieces f = RandomRelation(random, a, b), g = RandomRelation(random, b, c), h = RandomRelation(random, c, d);
    REQUIRE(Normalize(Compose(Compose(f, g), h)) == Normalize(Compose(f, Compose(g, h))));
  }
}

TEST_CASE("Random relations: Normalize keeps the meaning, and gives one list however a relation is cut") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const size_t rank = random.Between(0, 4);
    const Extents a = random.Shape(rank, 5), b = random.Shape(rank, 5);
    const Pieces relation = RandomRelation(random, a, b);
    const Pieces normal = Normalize(relation);
    REQUIRE(ElementMap(normal, a, b) == ElementMap(relation, a, b));
    REQUIRE(ElementCount(normal) == ElementCount(relation));
    REQUIRE(Normalize(Shattered(random, relation)) == normal);
    REQUIRE(Normalize(normal) == normal);
    REQUIRE(Normalize(Shattered(random, Whole(a))) == Whole(a));
  }
}

TEST_CASE("Random regions that move as one: Normalize gives one list however they are cut") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Extents shape = random.Shape(random.Between(2, 4), 5);
    Pieces region = RandomTiling(random, shape);
    std::erase_if(region, [&](const Piece&) { return random.OneIn(3); });
    const Pieces normal = Normalize(region);
    REQUIRE(ElementMap(normal, shape, shape) == ElementMap(region, shape, shape));
    REQUIRE(Normalize(Shattered(random, region)) == normal);
    REQUIRE(Normalize(Shattered(random, region)) == normal);
  }
}

TEST_CASE("Random relations: Inverse is its own inverse, and undoes an injection") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const size_t rank = random.Between(0, 3);
    const Extents a = random.Shape(rank, 6), b = random.Shape(rank, 6);
    const Pieces relation = RandomRelation(random, a, b);
    REQUIRE(Normalize(Inverse(Inverse(relation))) == Normalize(relation));
    const std::vector<uint64_t> round = ElementMap(Compose(relation, Inverse(relation)), a, a);
    const std::vector<uint64_t> to_b = ElementMap(Inverse(relation), b, a);
    for (uint64_t i = 0; i < round.size(); ++i) REQUIRE(round[i] == (to_b[i] == kNoElement ? kNoElement : i));
  }
}

TEST_CASE("Random tilings are accepted, and refused with any one box missing, twice, moved or larger") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Extents shape = random.Shape(random.Between(1, 4), 6);
    const Pieces tiling = RandomTiling(random, shape);
    REQUIRE(CheckTiling(tiling, shape).ok());
    const size_t victim = random.Between(0, tiling.size() - 1);
    const size_t k = random.Between(0, shape.size() - 1);

    Pieces changed = tiling;
    changed.erase(changed.begin() + static_cast<ptrdiff_t>(victim));
    REQUIRE(CheckTiling(changed, shape).message() ==
            "nothing covers " + std::to_string(ElementCount(tiling[victim].size)) + " of " +
                std::to_string(ElementCount(shape)) + " elements, the first at " + ShapeText(tiling[victim].target));
    changed = tiling;
    changed.push_back(tiling[victim]);
    REQUIRE(CheckTiling(changed, shape).message() == "pieces " + std::to_string(victim) + " and " +
                                                         std::to_string(tiling.size()) + " overlap in " +
                                                         BoxText(tiling[victim].target, tiling[victim].size));
    changed = tiling;
    --changed[victim].size[k];
    REQUIRE_THAT(CheckTiling(changed, shape), FailsWith(ErrorCode::kBadData, "nothing covers"));
    if (tiling[victim].target[k] == 0) continue;
    --changed[victim].target[k];
    REQUIRE_THAT(CheckTiling(changed, shape),
                 FailsWith(ErrorCode::kBadData, changed[victim].size[k] == 0 ? "nothing covers" : "overlap in"));
    changed = tiling;
    --changed[victim].target[k];
    ++changed[victim].size[k];
    REQUIRE_THAT(CheckTiling(changed, shape), FailsWith(ErrorCode::kBadData, "overlap in"));
  }
}

TEST_CASE("Random boxes: CheckTiling accepts exactly what covers every element once") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Extents shape = random.Shape(2, 3);
    Pieces boxes(random.Between(1, 3));
    std::vector<int> covers(ElementCount(shape));
    for (Piece& box : boxes) {
      for (const uint64_t extent : shape) {
        box.target.push_back(random.Between(0, extent - 1));
        box.size.push_back(random.Between(0, extent - box.target.back()));
      }
      ForEachIndex(box.size, [&](const Extents& index) { ++covers[FlatIndex(shape, box.target, index)]; });
    }
    REQUIRE(CheckTiling(boxes, shape).ok() == (covers == std::vector<int>(covers.size(), 1)));
  }
}

}  // namespace
}  // namespace lockstep::layout

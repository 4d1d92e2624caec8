#include "common/layout/strided_copy.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "common/layout/layout_testing.h"

namespace lockstep::layout {
namespace {

constexpr uint64_t kCases = 3000;

std::vector<StridedCopy> Copies(const Pieces& pieces, const TensorView& source, const TensorView& target) {
  std::vector<StridedCopy> copies;
  AppendCopies(pieces, source, target, copies);
  return copies;
}

// Which element of the source (by byte offset) each element of the target (by byte offset) gets, each once.
std::vector<std::pair<uint64_t, uint64_t>> Meaning(const std::vector<StridedCopy>& copies, ElementBytes element) {
  std::vector<std::pair<uint64_t, uint64_t>> moves;
  for (const StridedCopy& copy : copies) {
    REQUIRE(copy.row_bytes % element.target == 0);
    for (uint64_t row = 0; row < copy.rows; ++row) {
      for (uint64_t i = 0; i < copy.row_bytes / element.target; ++i) {
        moves.emplace_back(copy.target_offset + row * copy.target_pitch + i * element.target,
                           copy.source_offset + row * copy.source_pitch + i * element.source);
      }
    }
  }
  std::sort(moves.begin(), moves.end());
  return moves;
}

// A view with its dimensions in random order in memory, and with random gaps.
TensorView RandomView(Random& random, const Extents& shape, uint64_t element_bytes) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (random.OneIn(2)) random.Shuffle(order);
  TensorView view{shape, Extents(shape.size()), element_bytes, element_bytes * random.Between(0, 9)};
  uint64_t stride = random.OneIn(4) ? 2 : 1;
  for (size_t i = order.size(); i-- > 0;) {
    view.strides[order[i]] = stride;
    stride *= shape[order[i]];
    if (random.OneIn(4)) stride += random.Between(1, 3);
  }
  return view;
}

uint64_t ByteOffset(const TensorView& view, const Extents& start, const Extents& index) {
  uint64_t elements = 0;
  for (size_t k = 0; k < start.size(); ++k) elements += (start[k] + index[k]) * view.strides[k];
  return view.offset + elements * view.element_bytes;
}

std::vector<StridedCopy> RandomCopies(Random& random, ElementBytes element) {
  const size_t rank = random.Between(0, 4);
  const Extents a = random.Shape(rank, 5), b = random.Shape(rank, 5);
  const TensorView source = RandomView(random, a, element.source);
  const TensorView target = RandomView(random, b, element.target);
  return Copies(Shattered(random, RandomRelation(random, a, b)), source, target);
}

ElementBytes RandomElement(Random& random) {
  return {uint64_t{1} << random.Between(0, 2), uint64_t{1} << random.Between(0, 2)};
}

TEST_CASE("A whole contiguous tensor is one row") {
  CHECK(Copies(Whole({4, 6, 8}), TensorView::Contiguous({4, 6, 8}, 2, 100), TensorView::Contiguous({4, 6, 8}, 2, 0)) ==
        std::vector<StridedCopy>{{.source_offset = 100, .row_bytes = 384}});
}

TEST_CASE("A shard of rows is one row, a shard of columns is strided on the target's side") {
  const TensorView target = TensorView::Contiguous({8, 6}, 2, 1000);
  CHECK(Copies(ShardOf({8, 6}, 0, 1, 2), TensorView::Contiguous({4, 6}, 2, 0), target) ==
        std::vector<StridedCopy>{{.target_offset = 1048, .row_bytes = 48}});
  CHECK(Copies(ShardOf({8, 6}, 1, 1, 2), TensorView::Contiguous({8, 3}, 2, 0), target) ==
        std::vector<StridedCopy>{
            {.target_offset = 1006, .rows = 8, .row_bytes = 6, .source_pitch = 6, .target_pitch = 12}});
}

TEST_CASE("A converted tensor has one row too, as long as its target") {
  CHECK(Copies(Whole({4, 6}), TensorView::Contiguous({4, 6}, 4, 0), TensorView::Contiguous({4, 6}, 2, 0)) ==
        std::vector<StridedCopy>{{.row_bytes = 48}});
}

TEST_CASE("A transposed source is copied element by element") {
  const TensorView source{{3, 2}, {1, 3}, 2, 0};
  CHECK(Copies(Whole({3, 2}), source, TensorView::Contiguous({3, 2}, 2, 0)) ==
        std::vector<StridedCopy>{
            {.rows = 2, .row_bytes = 2, .source_pitch = 6, .target_pitch = 2},
            {.source_offset = 2, .target_offset = 4, .rows = 2, .row_bytes = 2, .source_pitch = 6, .target_pitch = 2},
            {.source_offset = 4, .target_offset = 8, .rows = 2, .row_bytes = 2, .source_pitch = 6, .target_pitch = 2}});
}

TEST_CASE("A tensor and a target transposed alike are one row") {
  const TensorView view{{3, 2}, {1, 3}, 2, 0};
  CHECK(Copies(Whole({3, 2}), view, view) == std::vector<StridedCopy>{{.row_bytes = 12}});
}

TEST_CASE("Outer dimensions that no pitch covers become copies of their own") {
  const std::vector<StridedCopy> copies =
      Copies(Box({0, 0, 0}, {0, 1, 1}, {3, 2, 2}), TensorView::Contiguous({3, 2, 2}, 1, 0),
             TensorView::Contiguous({3, 4, 4}, 1, 0));
  REQUIRE(copies.size() == 3);
  CHECK(copies[2] ==
        StridedCopy{
            .source_offset = 8, .target_offset = 37, .rows = 2, .row_bytes = 2, .source_pitch = 2, .target_pitch = 4});
}

TEST_CASE("Empty pieces are no copies, and a scalar is one") {
  CHECK(Copies(Box({0, 0}, {0, 0}, {0, 4}), TensorView::Contiguous({4, 4}, 2, 0), TensorView::Contiguous({4, 4}, 2, 0))
            .empty());
  CHECK(Copies(Whole({}), TensorView::Contiguous({}, 4, 8), TensorView::Contiguous({}, 4, 0)) ==
        std::vector<StridedCopy>{{.source_offset = 8, .row_bytes = 4}});
}

TEST_CASE("Random pieces of random views: the copies move every element of every piece, and nothing else") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const ElementBytes element = RandomElement(random);
    const size_t rank = random.Between(0, 4);
    const Extents a = random.Shape(rank, 5), b = random.Shape(rank, 5);
    const TensorView source = RandomView(random, a, element.source);
    const TensorView target = RandomView(random, b, element.target);
    const Pieces pieces = RandomRelation(random, a, b);
    std::vector<std::pair<uint64_t, uint64_t>> expected;
    for (const Piece& piece : pieces) {
      ForEachIndex(piece.size, [&](const Extents& index) {
        expected.emplace_back(ByteOffset(target, piece.target, index), ByteOffset(source, piece.source, index));
      });
    }
    std::sort(expected.begin(), expected.end());
    const std::vector<StridedCopy> copies = Copies(pieces, source, target);
    REQUIRE(Meaning(copies, element) == expected);
    uint64_t counted = 0;
    for (const Piece& piece : pieces) counted += CopyCount(piece, source, target);
    REQUIRE(counted == copies.size());
    for (const StridedCopy& copy : copies) {
      REQUIRE((copy.rows > 1 ? copy.target_pitch >= copy.row_bytes : copy.target_pitch + copy.source_pitch == 0));
    }
  }
}

TEST_CASE("Rows given one by one coalesce to one copy, and contiguous ones to one row") {
  std::vector<StridedCopy> rows;
  for (uint64_t i = 0; i < 5; ++i) rows.push_back({.source_offset = i * 10, .target_offset = i * 7, .row_bytes = 6});
  Coalesce(rows, {});
  CHECK(rows == std::vector<StridedCopy>{{.rows = 5, .row_bytes = 6, .source_pitch = 10, .target_pitch = 7}});

  std::vector<StridedCopy> wide{{.row_bytes = 6}, {.source_offset = 12, .target_offset = 6, .row_bytes = 8}};
  Coalesce(wide, {.source = 4, .target = 2});
  CHECK(wide == std::vector<StridedCopy>{{.row_bytes = 14}});
}

TEST_CASE("Neighbouring columns coalesce to whole rows") {
  std::vector<StridedCopy> columns{
      {.rows = 3, .row_bytes = 4, .source_pitch = 10, .target_pitch = 10},
      {.source_offset = 4, .target_offset = 4, .rows = 3, .row_bytes = 6, .source_pitch = 10, .target_pitch = 10}};
  Coalesce(columns, {});
  CHECK(columns == std::vector<StridedCopy>{{.row_bytes = 30}});
}

TEST_CASE("Columns and the rows after them do not coalesce to rows that overlap") {
  const std::vector<StridedCopy> columns{
      {.source_offset = 2, .rows = 5, .row_bytes = 2, .source_pitch = 4, .target_pitch = 6},
      {.source_offset = 4, .target_offset = 2, .rows = 5, .row_bytes = 4, .source_pitch = 4, .target_pitch = 6}};
  std::vector<StridedCopy> coalesced = columns;
  Coalesce(coalesced, {});
  CHECK(coalesced == columns);
}

TEST_CASE("Random copies: Coalesce keeps the meaning and never makes more") {
  uint64_t before = 0;
  uint64_t after = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const ElementBytes element = RandomElement(random);
    std::vector<StridedCopy> copies = RandomCopies(random, element);
    const auto meaning = Meaning(copies, element);
    if (random.OneIn(2)) {
      std::sort(copies.begin(), copies.end(),
                [](const StridedCopy& a, const StridedCopy& b) { return a.target_offset < b.target_offset; });
    }
    before += copies.size();
    Coalesce(copies, element);
    after += copies.size();
    REQUIRE(Meaning(copies, element) == meaning);
  }
  CHECK(after < before);
}

TEST_CASE("A copy is split between rows, and inside rows that are too long between elements") {
  const StridedCopy copy{
      .source_offset = 100, .target_offset = 0, .rows = 5, .row_bytes = 8, .source_pitch = 32, .target_pitch = 10};
  std::vector<StridedCopy> parts;
  AppendSplit(copy, 17, {.source = 4, .target = 2}, parts);
  CHECK(parts == std::vector<StridedCopy>{{100, 0, 2, 8, 32, 10},
                                          {164, 20, 2, 8, 32, 10},
                                          {.source_offset = 228, .target_offset = 40, .row_bytes = 8}});
  parts.clear();
  AppendSplit({.source_offset = 100, .row_bytes = 8}, 5, {.source = 4, .target = 2}, parts);
  CHECK(parts == std::vector<StridedCopy>{{.source_offset = 100, .row_bytes = 4},
                                          {.source_offset = 108, .target_offset = 4, .row_bytes = 4}});
}

TEST_CASE("A copy is clipped to part of a row, whole rows and part of a row") {
  const StridedCopy copy{
      .source_offset = 100, .target_offset = 0, .rows = 5, .row_bytes = 8, .source_pitch = 32, .target_pitch = 10};
  std::vector<StridedCopy> parts;
  AppendClipped(copy, 6, 34, {.source = 4, .target = 2}, parts);
  CHECK(parts == std::vector<StridedCopy>{{.source_offset = 112, .target_offset = 6, .row_bytes = 2},
                                          {132, 10, 2, 8, 32, 10},
                                          {.source_offset = 196, .target_offset = 30, .row_bytes = 4}});
  parts.clear();
  AppendClipped(copy, 8, 10, {.source = 4, .target = 2}, parts);  // between two rows
  AppendClipped(copy, 48, 100, {.source = 4, .target = 2}, parts);
  CHECK(parts.empty());
  AppendClipped(copy, 22, 26, {.source = 4, .target = 2}, parts);  // within one
  CHECK(parts == std::vector<StridedCopy>{{.source_offset = 168, .target_offset = 22, .row_bytes = 4}});
}

TEST_CASE("Random copies: what is clipped is what writes into the clipped range") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const ElementBytes element = RandomElement(random);
    for (const StridedCopy& copy : RandomCopies(random, element)) {
      const uint64_t phase = copy.target_offset % element.target;
      const uint64_t begin = phase + element.target * random.Between(0, copy.target_offset / element.target + 40);
      const uint64_t end = begin + element.target * random.Between(1, 60);
      std::vector<StridedCopy> parts;
      AppendClipped(copy, begin, end, element, parts);
      std::vector<std::pair<uint64_t, uint64_t>> expected = Meaning({copy}, element);
      std::erase_if(expected, [&](const auto& move) { return move.first < begin || move.first >= end; });
      REQUIRE(Meaning(parts, element) == expected);
      REQUIRE(parts.size() <= 3);
      for (const StridedCopy& part : parts) REQUIRE(part.bytes() > 0);
    }
  }
}

TEST_CASE("Random copies: the parts of a split are exactly the copy, none over the limit") {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const ElementBytes element = RandomElement(random);
    const std::vector<StridedCopy> copies = RandomCopies(random, element);
    const uint64_t limit = element.target + random.Between(0, 20);
    std::vector<StridedCopy> parts;
    for (const StridedCopy& copy : copies) AppendSplit(copy, limit, element, parts);
    for (const StridedCopy& part : parts) {
      REQUIRE(part.bytes() <= limit);
      REQUIRE((part.rows > 1 || part.source_pitch + part.target_pitch == 0));
    }
    REQUIRE(Meaning(parts, element) == Meaning(copies, element));
  }
}

TEST_CASE("The target range of a copy is where it writes") {
  CHECK(TargetRange({5, 100, 4, 8, 8, 20}) == StridedRange{.offset = 100, .row_bytes = 8, .rows = 4, .pitch = 20});
  CHECK(TargetRange({.target_offset = 7, .row_bytes = 9}) == StridedRange::Plain({7, 9}));
}

}  // namespace
}  // namespace lockstep::layout

#include "trainer_agent/run/shares.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <string>

#include "common/base/status_testing.h"
#include "common/base/text.h"

namespace lockstep::run {
namespace {

std::shared_ptr<const model::ModelLayout> LayoutOf(const std::vector<uint64_t>& sizes) {
  std::vector<model::TensorMeta> tensors;
  uint64_t offset = 0;
  for (const uint64_t size : sizes) {
    tensors.push_back({Cat("t", tensors.size()), model::DType::kU8, {size}, offset});
    offset += size;
  }
  return *model::ModelLayout::Create(std::move(tensors), 4096);
}

wire::Share ShareOf(const std::vector<StridedRange>& batches) {
  wire::Share share;
  for (const StridedRange& batch : batches) share.Add({&batch, 1});
  return share;
}

Status Prove(const model::ModelLayout& layout, const std::vector<std::vector<StridedRange>>& ranks) {
  std::vector<wire::Share> shares;
  for (const auto& batches : ranks) shares.push_back(ShareOf(batches));
  std::vector<const wire::Share*> pointers;
  for (const wire::Share& share : shares) pointers.push_back(&share);
  return ProveShares(layout, pointers);
}

TEST_CASE("Shares that have a byte twice, or not at all, are refused with the tensor and the ranks") {
  const auto layout = LayoutOf({1000, 3000});
  CHECK(Prove(*layout, {{{0, 4000}}}).ok());
  CHECK(Prove(*layout, {{{0, 50, 40, 100}}, {{50, 50, 40, 100}}}).ok());
  CHECK_THAT(Prove(*layout, {{{0, 2000}}, {{2000, 1999}}}),
             FailsWith(ErrorCode::kBadData, "tensor \"t1\": 1 of its 3000 bytes are in no rank's share"));
  CHECK_THAT(Prove(*layout, {{{0, 2001}}, {{2000, 2000}}}),
             FailsWith(ErrorCode::kBadData, "tensor \"t1\": ranks 0 and 1 both have some of its bytes"));
  CHECK_THAT(Prove(*layout, {{{0, 51, 40, 100}}, {{50, 50, 40, 100}}}),
             FailsWith(ErrorCode::kBadData, "tensor \"t0\": ranks 0 and 1 both have some of its bytes"));
  CHECK_THAT(Prove(*layout, {{{0, 4000}, {17, 1}}}),
             FailsWith(ErrorCode::kBadData, "tensor \"t0\": rank 0 has some of its bytes twice"));
}

TEST_CASE("Malformed ranges are refused, saying what is wrong") {
  const auto layout = LayoutOf({4000});
  CHECK_THAT(Prove(*layout, {{{0, 10, 0, 10}}}), FailsWith(ErrorCode::kBadData, "the share of rank 0", "has no rows"));
  CHECK_THAT(Prove(*layout, {{{0, 10, 2, 9}}}), FailsWith(ErrorCode::kBadData, "the rows overlap each other"));
  for (const StridedRange& outside :
       {StridedRange{4000, 1}, StridedRange{0, 4001}, StridedRange{~uint64_t{0}, 2},
        StridedRange{0, 1, ~uint64_t{0}, 2}, StridedRange{0, 100, 41, 100}, StridedRange{3999, 1, 2, ~uint64_t{0}}}) {
    CHECK_THAT(Prove(*layout, {{outside}}), FailsWith(ErrorCode::kBadData, "outside the data section of 4000 bytes"));
  }
}

// A cut of the layout among ranks: rows of a pitch, in columns, and plain ranges, in any order.
std::vector<std::vector<StridedRange>> RandomCut(std::mt19937& random, uint64_t bytes) {
  std::vector<std::vector<StridedRange>> ranks(random() % 4 + 1);
  const auto add = [&](const StridedRange& range) { ranks[random() % ranks.size()].push_back(range); };
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t left = bytes - at;
    const uint64_t pitch = random() % 300 + 1;
    const uint64_t rows = std::min<uint64_t>(random() % 40 + 1, left / pitch);
    if (rows < 2 || random() % 3 == 0) {
      const uint64_t size = std::min<uint64_t>(random() % 900 + 1, left);
      add(StridedRange::Plain({at, size}));
      at += size;
      continue;
    }
    for (uint64_t column = 0; column < pitch;) {
      const uint64_t width = std::min<uint64_t>(random() % pitch + 1, pitch - column);
      add({at + column, width, rows, pitch});
      column += width;
    }
    at += rows * pitch;
  }
  for (auto& rank : ranks) std::ranges::shuffle(rank, random);
  return ranks;
}

// How often each byte is in a share.
std::vector<int> CountsOf(const std::vector<std::vector<StridedRange>>& ranks, uint64_t bytes) {
  std::vector<int> counts(bytes);
  for (const auto& ranges : ranks) {
    for (const StridedRange& range : ranges) {
      for (uint64_t row = 0; row < range.rows; ++row) {
        for (uint64_t i = 0; i < range.row_bytes; ++i) ++counts[range.offset + row * range.pitch + i];
      }
    }
  }
  return counts;
}

TEST_CASE("A cut of any kind is proved, and one that is changed is judged as a count of every byte judges it") {
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    const auto layout = LayoutOf({random() % 60 + 1, 4800, random() % 50 + 1, random() % 9000 + 1, 725});
    const uint64_t bytes = layout->data_bytes();
    auto ranks = RandomCut(random, bytes);
    REQUIRE(Prove(*layout, ranks).ok());
    for (int change = 0; change < 5; ++change) {
      auto& rank = ranks[random() % ranks.size()];
      if (rank.empty()) continue;
      StridedRange& range = rank[random() % rank.size()];
      const StridedRange before = range;
      switch (random() % 4) {
        case 0:
          range.offset += range.offset + (range.rows - 1) * range.pitch + range.row_bytes < bytes ? 1 : 0;
          break;
        case 1:
          range.row_bytes -= range.row_bytes > 1 ? 1 : 0;
          break;
        case 2:
          range.rows -= range.rows > 1 ? 1 : 0;
          break;
        case 3:
          range.offset -= range.offset > 0 ? 1 : 0;
          break;
      }
      const auto counts = CountsOf(ranks, bytes);
      const bool exact = std::ranges::all_of(counts, [](int count) { return count == 1; });
      refused += exact ? 0 : 1;
      REQUIRE(Prove(*layout, ranks).ok() == exact);
      range = before;
    }
  }
  CHECK(refused > 500);
}

TEST_CASE(
    "Blocks complete with the last batch that has a byte of them, in whatever order, also when they are counted late") {
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    const auto layout = LayoutOf({random() % 9000 + 1, 40000, random() % 5000 + 1});
    const auto cut = RandomCut(random, layout->data_bytes());
    const auto ranks = static_cast<uint32_t>(cut.size());
    Shares shares(layout, ranks);
    const uint32_t late = random() % ranks;  // connects in the middle of the draft
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (rank != late) REQUIRE(shares.Set(rank, ShareOf(cut[rank])).ok());
    }
    DraftProgress progress(&shares);
    std::vector<int> missing(layout->data_bytes(), 1);
    std::vector<bool> is_new(layout->data_bytes());
    std::set<BlockIndex> whole;
    const auto check = [&](const CompletedBlocks& completed) {
      for (const auto* const blocks : {&completed.changed, &completed.unchanged}) {
        for (const BlockIndex block : *blocks) {
          const ByteRange range = layout->block_range(block);
          bool any_new = false;
          for (uint64_t i = range.offset; i < range.end(); ++i) {
            REQUIRE(missing[i] == 0);
            any_new = any_new || is_new[i];
          }
          REQUIRE(any_new == (blocks == &completed.changed));
          REQUIRE(whole.insert(block).second);
        }
      }
    };
    std::vector<std::pair<uint32_t, uint32_t>> order;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      for (uint32_t batch = 0; batch < cut[rank].size(); ++batch) order.emplace_back(rank, batch);
    }
    std::ranges::shuffle(order, random);
    std::stable_partition(order.begin(), order.end(),
                          [&](const auto& one) { return one.first != late || random() % 2 == 0; });
    bool here = false;
    for (const auto& [rank, batch] : order) {
      if (rank == late && !here) {
        here = true;
        REQUIRE(shares.Set(late, ShareOf(cut[late])).ok());
        check(progress.Count());
      }
      CHECK_FALSE(progress.CheckWhole(rank).ok());
      const Content content = random() % 2 == 0 ? Content::kNew : Content::kUnchanged;
      const StridedRange& range = cut[rank][batch];
      for (uint64_t row = 0; row < range.rows; ++row) {
        for (uint64_t i = 0; i < range.row_bytes; ++i) {
          missing[range.offset + row * range.pitch + i] = 0;
          is_new[range.offset + row * range.pitch + i] = content == Content::kNew;
        }
      }
      const auto completed = progress.Report(rank, {&batch, 1}, content);
      REQUIRE(completed.ok());
      check(*completed);
    }
    if (!here) {
      REQUIRE(shares.Set(late, ShareOf(cut[late])).ok());
      check(progress.Count());
    }
    CHECK(whole.size() == layout->block_count());
    for (uint32_t rank = 0; rank < ranks; ++rank) CHECK(progress.CheckWhole(rank).ok());
    const uint32_t foreign = 1u << 30;
    CHECK_THAT(progress.Report(0, {&foreign, 1}, Content::kNew),
               FailsWith(ErrorCode::kBadData, "rank 0 reports batch"));
  }
}

TEST_CASE("The proof of eight ranks' columns of a large model costs what their ranges cost, not their rows") {
  constexpr uint64_t kTensors = 160, kRows = 8192, kPitch = 16384, kRanks = 8, kChunkRows = 512;
  std::vector<model::TensorMeta> tensors;
  for (uint64_t i = 0; i < kTensors; ++i) {
    tensors.push_back({Cat("t", i), model::DType::kU8, {kRows, kPitch}, i * kRows * kPitch});
  }
  const auto layout = *model::ModelLayout::Create(std::move(tensors));
  Shares shares(layout, kRanks);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    std::vector<StridedRange> batches;
    for (uint64_t i = 0; i < kTensors * kRows / kChunkRows; ++i) {
      batches.push_back({i * kChunkRows * kPitch + rank * kPitch / kRanks, kPitch / kRanks, kChunkRows, kPitch});
    }
    REQUIRE(shares.Set(rank, ShareOf(batches)).ok());
  }
  DraftProgress progress(&shares);
  size_t completed = 0;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    for (uint32_t batch = 0; batch < kTensors * kRows / kChunkRows; ++batch) {
      completed += progress.Report(rank, {&batch, 1}, Content::kNew)->changed.size();
    }
  }
  CHECK(completed == layout->block_count());
}

}  // namespace
}  // namespace lockstep::run

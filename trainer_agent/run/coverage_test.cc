#include "trainer_agent/run/coverage.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "common/base/status_testing.h"
#include "common/base/text.h"

namespace lockstep::run {
namespace {

using Blocks = std::vector<BlockIndex>;

std::shared_ptr<const model::ModelLayout> Layout(const std::vector<uint64_t>& tensor_bytes) {
  std::vector<model::TensorMeta> tensors;
  uint64_t offset = 0;
  for (const uint64_t bytes : tensor_bytes) {
    tensors.push_back({std::string(1, static_cast<char>('a' + tensors.size())), model::DType::kU8, {bytes}, offset});
    offset += bytes;
  }
  return *model::ModelLayout::Create(std::move(tensors), 4096);
}

// A layout and what is reported of it; the calls return what Add() appended.
struct Reported {
  std::shared_ptr<const model::ModelLayout> layout;
  Coverage coverage{*layout};

  CompletedBlocks Add(const StridedRange& range, Content content = Content::kNew) {
    CompletedBlocks completed;
    REQUIRE(coverage.Add(range, content, completed).ok());
    return completed;
  }
  Blocks Plain(uint64_t offset, uint64_t bytes) { return Add(StridedRange::Plain({offset, bytes})).changed; }
  Status Refuse(const StridedRange& range) {
    CompletedBlocks completed;
    const Status status = coverage.Add(range, Content::kNew, completed);
    CHECK((completed.changed.empty() && completed.unchanged.empty()));
    return status;
  }
};

TEST_CASE("Blocks complete when their last byte is reported, in whatever order") {
  Reported reported{Layout({5000, 5000})};
  CHECK(reported.Plain(4000, 200).empty());
  CHECK(reported.Plain(0, 4000) == Blocks{0});
  CHECK(reported.coverage.FirstMissing() == 4200);
  CHECK(reported.Plain(9000, 1000).empty());
  CHECK(reported.coverage.missing_bytes() == 4800);
  CHECK(reported.Plain(4200, 4800) == Blocks{1, 2});
  CHECK(reported.coverage.complete());
  CHECK_FALSE(reported.coverage.FirstMissing());
}

TEST_CASE("A byte reported twice, or outside, is refused and changes nothing") {
  Reported reported{Layout({5000, 5000})};
  reported.Plain(100, 100);
  for (const ByteRange range : {ByteRange{100, 100}, {50, 51}, {199, 1}, {150, 10}, {0, 10000}}) {
    CHECK_THAT(reported.Refuse(StridedRange::Plain(range)), FailsWith(ErrorCode::kBadData, "reported twice"));
  }
  CHECK_THAT(reported.Refuse({20, 10, 10, 30}), FailsWith(ErrorCode::kBadData, "(tensor \"a\") were reported twice"));
  CHECK_THAT(reported.Refuse(StridedRange::Plain({9999, 2})),
             FailsWith(ErrorCode::kBadData, "outside the data section of 10000 bytes"));
  CHECK_THAT(reported.Refuse(StridedRange::Plain({~uint64_t{0}, 2})),
             FailsWith(ErrorCode::kBadData, "outside the data section of 10000 bytes"));
  reported.Plain(10, 0);
  reported.Plain(0, 100);
  reported.Plain(200, 9800);
  CHECK_THAT(reported.Refuse({0, 10, 10, 30}), FailsWith(ErrorCode::kBadData, "reported twice"));
  CHECK(reported.coverage.complete());
  CHECK_FALSE(reported.coverage.FirstMissing());
}

TEST_CASE("Malformed rows are refused, saying what is wrong") {
  Reported reported{Layout({5000, 5000})};
  constexpr uint64_t kHuge = ~uint64_t{0};
  CHECK_THAT(reported.Refuse({0, 10, 0, 10}), FailsWith(ErrorCode::kBadData, "no rows"));
  CHECK_THAT(reported.Refuse({0, 10, 2, 9}), FailsWith(ErrorCode::kBadData, "overlap each other"));
  for (const StridedRange& range : {StridedRange{0, 10, 2, 9991},
                                    {0, 10, kHuge, 10},
                                    {0, 1, kHuge / 2 + 2, 2},
                                    {0, 1, 2, kHuge},
                                    {kHuge, 1, 2, 2},
                                    {0, kHuge, kHuge, kHuge}}) {
    CHECK_THAT(reported.Refuse(range), FailsWith(ErrorCode::kBadData, "outside the data section"));
  }
  CHECK(reported.coverage.missing_bytes() == 10000);
  reported.Add({0, 10, 2, 9990});
}

TEST_CASE("Columns reported by several ranks complete every block, and the first missing byte is found among them") {
  Reported reported{Layout({100, 64 * 128, 100})};
  reported.Plain(0, 100);
  for (const uint64_t column : {96, 0, 32}) CHECK(reported.Add({100 + column, 32, 64, 128}).changed.empty());
  CHECK(reported.coverage.FirstMissing() == 164);
  CHECK(reported.coverage.missing_bytes() == 64 * 32 + 100);
  CHECK_THAT(reported.Refuse({163, 2, 2, 128}), FailsWith(ErrorCode::kBadData, "reported twice"));
  CHECK(reported.Add({164, 32, 63, 128}).changed == Blocks{0, 1});
  CHECK(reported.coverage.FirstMissing() == 164 + 63 * 128);
  CHECK(reported.Plain(164 + 63 * 128, 32).empty());
  CHECK(reported.coverage.FirstMissing() == 100 + 64 * 128);
  CHECK(reported.coverage.pieces() == 1);
  CHECK(reported.Plain(100 + 64 * 128, 100) == Blocks{2});
}

TEST_CASE("A block is unchanged when every byte of it was reported so") {
  Reported reported{Layout({3 * 4096})};
  const CompletedBlocks first = reported.Add({0, 16, 3 * 4096 / 32, 32}, Content::kUnchanged);
  CHECK((first.changed.empty() && first.unchanged.empty()));
  CHECK_THAT(reported.Refuse({0, 1, 2, 4096}), FailsWith(ErrorCode::kBadData, "reported twice"));
  reported.Add({4096 + 16, 16, 1, 0}, Content::kNew);
  CompletedBlocks rest = reported.Add({16, 16, 128, 32}, Content::kUnchanged);
  CHECK(rest.unchanged == Blocks{0});
  rest = reported.Add({4096 + 48, 16, 255, 32}, Content::kUnchanged);
  CHECK(rest.changed == Blocks{1});
  CHECK(rest.unchanged == Blocks{2});
}

TEST_CASE("A block that lies between two rows has nothing of them") {
  Reported reported{Layout({3 * 4096})};
  reported.Add({0, 16, 2, 8192}, Content::kNew);
  const CompletedBlocks rest = reported.Add({16, 8176, 1, 0}, Content::kUnchanged);
  CHECK(rest.changed == Blocks{0});
  CHECK(rest.unchanged == Blocks{1});
}

TEST_CASE("Rows of another pitch in one tensor are kept one by one, up to a limit") {
  Reported reported{Layout({5000, uint64_t{1} << 23})};
  reported.Add({5000, 1, 2, 1 << 22});
  reported.Add({5001, 1, 1000, 3000});
  CHECK_THAT(reported.Refuse({5001, 1, 2, 3000}), FailsWith(ErrorCode::kBadData, "reported twice"));
  CHECK_THAT(reported.Refuse({5002, 1, kMaxRowsApart + 1, 4}),
             FailsWith(ErrorCode::kResourceExhausted, "too many to be kept one by one"));
}

TEST_CASE("Any partition in any order completes every block exactly once") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Reported reported{Layout({5000, 5000})};
    std::vector<ByteRange> parts;
    for (uint64_t at = 0; at < 10000;) {
      const uint64_t bytes = std::min<uint64_t>(10000 - at, random() % 3000 + 1);
      parts.push_back({at, bytes});
      at += bytes;
    }
    std::shuffle(parts.begin(), parts.end(), random);
    Blocks completed;
    for (const ByteRange& part : parts) {
      const Blocks blocks = reported.Plain(part.offset, part.bytes);
      completed.insert(completed.end(), blocks.begin(), blocks.end());
    }
    std::sort(completed.begin(), completed.end());
    REQUIRE(completed == Blocks{0, 1, 2});
    REQUIRE(reported.coverage.complete());
  }
}

// The same bookkeeping, a byte at a time.
struct Oracle {
  static constexpr char kMissing = 0, kNew = 1, kUnchanged = 2;
  const model::ModelLayout& layout;
  std::string bytes = std::string(layout.data_bytes(), kMissing);

  bool Accepts(const StridedRange& range) const {
    for (uint64_t row = 0; row < range.rows; ++row) {
      const uint64_t start = range.offset + row * range.pitch;
      if (start + range.row_bytes > bytes.size()) return false;
      if (bytes.substr(start, range.row_bytes).find_first_not_of(kMissing) != std::string::npos) return false;
    }
    return true;
  }
  CompletedBlocks Add(const StridedRange& range, Content content) {
    const std::string before = bytes;
    for (uint64_t row = 0; row < range.rows; ++row) {
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(range.offset + row * range.pitch), range.row_bytes,
                  content == Content::kNew ? kNew : kUnchanged);
    }
    CompletedBlocks completed;
    for (BlockIndex i = 0; i < layout.block_count(); ++i) {
      const ByteRange block = layout.block_range(i);
      const std::string now = bytes.substr(block.offset, block.bytes);
      if (now.find(kMissing) != std::string::npos || before.compare(block.offset, block.bytes, now) == 0) continue;
      (now.find(kNew) != std::string::npos ? completed.changed : completed.unchanged).push_back(i);
    }
    return completed;
  }
  std::optional<uint64_t> FirstMissing() const {
    const size_t at = bytes.find(kMissing);
    return at == std::string::npos ? std::nullopt : std::optional<uint64_t>(at);
  }
};

StridedRange RandomRange(std::mt19937& random, uint64_t data_bytes) {
  static constexpr uint64_t kPitches[] = {8, 24, 24, 24, 48, 100, 1000, 8800};
  StridedRange range{.offset = random() % data_bytes, .row_bytes = random() % 40 + 1};
  if (random() % 4 == 0) return range;
  range.pitch = kPitches[random() % std::size(kPitches)];
  range.row_bytes = random() % 3 == 0 ? random() % range.pitch + 1 : range.pitch / 4;
  range.rows = random() % (random() % 2 == 0 ? 6 : 200) + 1;
  if (random() % 2 == 0) range.offset -= range.offset % (range.pitch / 4);
  return range;
}

TEST_CASE("Random rows, plain ranges and refusals are accounted for as a model of every byte says") {
  std::mt19937 random(7);
  size_t accepted = 0;
  size_t refused = 0;
  for (int round = 0; round < 150; ++round) {
    Reported reported{Layout({random() % 60 + 1, 24 * 200, random() % 50 + 1, random() % 9000 + 1, 24 * 30 + 5})};
    Oracle oracle{*reported.layout};
    const auto compare_add = [&](const StridedRange& range) {
      const Content content = random() % 2 == 0 ? Content::kNew : Content::kUnchanged;
      if (!oracle.Accepts(range)) {
        ++refused;
        REQUIRE(reported.Refuse(range).code() == ErrorCode::kBadData);
      } else {
        ++accepted;
        const CompletedBlocks expected = oracle.Add(range, content);
        const CompletedBlocks completed = reported.Add(range, content);
        REQUIRE(completed.changed == expected.changed);
        REQUIRE(completed.unchanged == expected.unchanged);
      }
      REQUIRE(reported.coverage.FirstMissing() == oracle.FirstMissing());
    };
    for (int i = 0; i < 60; ++i) compare_add(RandomRange(random, oracle.bytes.size()));
    while (const auto missing = oracle.FirstMissing()) {
      StridedRange range = RandomRange(random, oracle.bytes.size());
      range.offset = *missing;
      while (!oracle.Accepts(range)) {
        range.rows > 1 ? range.rows /= 2 : range.row_bytes = (range.row_bytes + 1) / 2;
      }
      compare_add(range);
    }
    REQUIRE(reported.coverage.complete());
    REQUIRE(reported.coverage.pieces() == 1);
  }
  CHECK(accepted > 5000);
  CHECK(refused > 1000);
}

TEST_CASE("Eight ranks' columns of a large model, a rank after the other, are kept in few pieces") {
  constexpr uint64_t kTensors = 160, kRows = 8192, kPitch = 16384, kRanks = 8, kChunkRows = 512;
  std::vector<model::TensorMeta> tensors;
  for (uint64_t i = 0; i < kTensors; ++i) {
    tensors.push_back({Cat("t", i), model::DType::kU8, {kRows, kPitch}, i * kRows * kPitch});
  }
  Reported reported{*model::ModelLayout::Create(std::move(tensors))};
  CompletedBlocks completed;
  for (uint64_t rank = 0; rank < kRanks; ++rank) {
    const uint64_t bytes = kPitch / kRanks;
    for (uint64_t i = 0; i < kTensors * kRows / kChunkRows; ++i) {
      const uint64_t chunk = rank % 2 == 0 ? i : kTensors * kRows / kChunkRows - 1 - i;
      const StridedRange range{chunk * kChunkRows * kPitch + rank * bytes, bytes, kChunkRows, kPitch};
      REQUIRE(reported.coverage.Add(range, Content::kNew, completed).ok());
    }
    CHECK(reported.coverage.pieces() <= 2 * kTensors);
  }
  CHECK(reported.coverage.complete());
  CHECK(completed.changed.size() == reported.layout->block_count());
}

}  // namespace
}  // namespace lockstep::run

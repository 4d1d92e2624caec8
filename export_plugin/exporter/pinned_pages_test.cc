#include "export_plugin/exporter/pinned_pages.h"

#include <catch2/catch.hpp>
#include <random>

namespace lockstep::exporter {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMiB = uint64_t{1} << 20;

std::byte* At(uint64_t address) {
  return reinterpret_cast<std::byte*>(address);
}

struct Pages {
  uint64_t begin;
  uint64_t bytes;
  bool operator==(const Pages&) const = default;
};

std::vector<Pages> PagesAt(uint64_t data, std::vector<StridedRange> ranges) {
  std::vector<Pages> pages;
  for (const auto& piece : PagesOf(At(data), ranges, kPage)) {
    pages.push_back({reinterpret_cast<uint64_t>(piece.data()), piece.size()});
  }
  return pages;
}

TEST_CASE("Whole pages of one's own ranges are pinned, no page twice") {
  constexpr uint64_t kData = 100 * kPage + 100;
  CHECK(PagesAt(kData, {}).empty());
  CHECK(PagesAt(kData, {{.offset = 0, .row_bytes = 1}}) == std::vector<Pages>{{100 * kPage, kPage}});
  CHECK(PagesAt(kData, {{.offset = kPage - 101, .row_bytes = 2}}) == std::vector<Pages>{{100 * kPage, 2 * kPage}});
  CHECK(PagesAt(kData, {{.offset = 10 * kMiB, .row_bytes = 5}, {.offset = 0, .row_bytes = 5}}) ==
        std::vector<Pages>{{100 * kPage, kPage}, {100 * kPage + 10 * kMiB, kPage}});
  CHECK(PagesAt(kData, {{.offset = 0, .row_bytes = 5}, {.offset = 5, .row_bytes = 5}, {.offset = 0, .row_bytes = 0}}) ==
        std::vector<Pages>{{100 * kPage, kPage}});
}

TEST_CASE("Rows are pinned with what is between them, and large ranges in pieces") {
  CHECK(PagesAt(0x10000, {{0, 10, 3, 5 * kMiB}}) == std::vector<Pages>{{0x10000, 10 * kMiB + kPage}});
  CHECK(PagesAt(0x10000, {{.offset = 0, .row_bytes = 2 * kPinChunkBytes + 1}}) ==
        std::vector<Pages>{{0x10000, kPinChunkBytes},
                           {0x10000 + kPinChunkBytes, kPinChunkBytes},
                           {0x10000 + 2 * kPinChunkBytes, kPage}});
}

TEST_CASE("A copy is cut into parts that are alike and together are the copy") {
  std::mt19937 generator(5);
  const auto below = [&](uint64_t end) { return generator() % end; };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> memory(4096);
    PinnedRanges pinned;
    std::vector<int> range_of(memory.size(), 0);
    uint64_t at = below(200);
    for (int range = 1; at < memory.size(); ++range) {
      const uint64_t bytes = std::min<uint64_t>(1 + below(700), memory.size() - at);
      pinned.Add({memory.data() + at, bytes});
      std::fill_n(range_of.begin() + static_cast<ptrdiff_t>(at), bytes, range);
      at += bytes + below(2) * below(300);
    }
    const uint64_t rows = 1 + below(20);
    const uint64_t row_bytes = 1 + below(100);
    const uint64_t pitch = rows == 1 ? 0 : row_bytes + below(90);
    const uint64_t other_pitch = rows == 1 ? 0 : row_bytes + below(9);
    const bool is_target = below(2) == 0;
    const layout::StridedCopy copy = is_target ? layout::StridedCopy{3, 50, rows, row_bytes, other_pitch, pitch}
                                               : layout::StridedCopy{50, 3, rows, row_bytes, pitch, other_pitch};
    std::vector<layout::StridedCopy> parts;
    pinned.AppendCut(copy, memory.data(), is_target, parts);
    std::map<uint64_t, uint64_t> moved;  // source byte of each target byte
    for (const layout::StridedCopy& part : parts) {
      const uint64_t host = is_target ? part.target_offset : part.source_offset;
      const uint64_t host_pitch = is_target ? part.target_pitch : part.source_pitch;
      const uint64_t last = host + (part.rows - 1) * host_pitch + part.row_bytes - 1;
      for (uint64_t byte = host; byte <= last; ++byte) REQUIRE(range_of[byte] == range_of[host]);
      for (uint64_t row = 0; row < part.rows; ++row) {
        for (uint64_t byte = 0; byte < part.row_bytes; ++byte) {
          const uint64_t to = part.target_offset + row * part.target_pitch + byte;
          REQUIRE(moved.emplace(to, part.source_offset + row * part.source_pitch + byte).second);
        }
      }
    }
    REQUIRE(moved.size() == copy.bytes());
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t byte = 0; byte < row_bytes; ++byte) {
        REQUIRE(moved.at(copy.target_offset + row * copy.target_pitch + byte) ==
                copy.source_offset + row * copy.source_pitch + byte);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::exporter

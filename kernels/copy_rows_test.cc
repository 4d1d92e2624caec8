#include "kernels/copy_rows.h"

#include <bit>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "kernels/copy_rows_scalar.h"

namespace lockstep::kernels {
namespace {

std::vector<std::byte> Noise(size_t bytes, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> noise(bytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(generator());
  return noise;
}

struct Case {
  uint64_t rows, row_bytes, dst_at, src_at, dst_gap, src_gap;
};

// Copies with the kernel and with the oracle into equal noise; what is around the rows must stay as it was.
void CheckCase(const Case& c) {
  const uint64_t dst_pitch = c.row_bytes + c.dst_gap;
  const uint64_t src_pitch = c.row_bytes + c.src_gap;
  const auto source = Noise(c.src_at + c.rows * src_pitch + 64, 1);
  auto copied = Noise(c.dst_at + c.rows * dst_pitch + 64, 2);
  auto expected = copied;
  CopyRows(copied.data() + c.dst_at, dst_pitch, source.data() + c.src_at, src_pitch, c.rows, c.row_bytes);
  for (uint64_t row = 0; row < c.rows; ++row) {
    scalar::CopyRow(expected.data() + c.dst_at + row * dst_pitch, source.data() + c.src_at + row * src_pitch,
                    c.row_bytes);
  }
  INFO(c.rows << " rows of " << c.row_bytes << " at " << c.dst_at << " from " << c.src_at << " gaps " << c.dst_gap
              << ", " << c.src_gap);
  CHECK(copied == expected);
}

TEST_CASE("Rows of every odd size and misaligned start are copied, and nothing next to them") {
  for (const uint64_t row_bytes : {1, 2, 63, 64, 65, 255, 256, 257, 511, 1000, 4098}) {
    for (const uint64_t at : {0, 1, 2, 8, 33, 63}) {
      CheckCase({3, row_bytes, at, 0, 5, 0});
      CheckCase({400'000 / row_bytes + 1, row_bytes, at, 64 - at, 2, 7});
    }
  }
}

TEST_CASE("One row of more than the caches hold is copied whole") {
  CheckCase({1, 3'000'001, 13, 2, 0, 0});
}

TEST_CASE("No rows, or empty ones, touch nothing") {
  CheckCase({0, 512, 0, 0, 0, 0});
  CheckCase({5, 0, 0, 0, 8, 8});
}

TEST_CASE("F32 is rounded to BF16 as the oracle does, at every tail length") {
  auto source = Noise(4 * 4096, 3);
  for (size_t elements = 0; elements < 70; ++elements) {
    std::vector<std::byte> narrowed(4 * 2 * 70, std::byte{0xee});
    auto expected = narrowed;
    CopyRowsF32ToBF16(narrowed.data() + 1, 2 * 70 + 1, source.data() + 3, 4 * 77, 3, elements);
    for (size_t row = 0; row < 3; ++row) {
      scalar::ConvertRowF32ToBF16(expected.data() + 1 + row * (2 * 70 + 1), source.data() + 3 + row * 4 * 77, elements);
    }
    CHECK(narrowed == expected);
  }
}

uint16_t Narrowed(uint32_t bits) {
  uint16_t narrowed = 0;
  std::vector<uint32_t> source(16, bits);
  std::vector<uint16_t> target(16);
  CopyRowsF32ToBF16(target.data(), 0, source.data(), 0, 1, 16);
  CopyRowsF32ToBF16(&narrowed, 0, source.data(), 0, 1, 1);
  CHECK(target == std::vector<uint16_t>(16, narrowed));
  CHECK(narrowed == scalar::BF16OfF32(std::bit_cast<float>(bits)));
  return narrowed;
}

TEST_CASE("Ties go to even, overflow to infinity, every NaN to 0x7FC0") {
  CHECK(Narrowed(0x3f80'8000) == 0x3f80);
  CHECK(Narrowed(0x3f81'8000) == 0x3f82);
  CHECK(Narrowed(0x3f80'8001) == 0x3f81);
  CHECK(Narrowed(0x3f80'7fff) == 0x3f80);
  CHECK(Narrowed(0x7f7f'ffff) == 0x7f80);
  CHECK(Narrowed(0xff80'0000) == 0xff80);
  CHECK(Narrowed(0x8000'0000) == 0x8000);
  CHECK(Narrowed(0x0000'8001) == 0x0001);
  for (const uint32_t nan : {0x7f80'0001u, 0x7fc0'0000u, 0xffff'ffffu, 0xff80'0001u}) CHECK(Narrowed(nan) == 0x7fc0);
}

TEST_CASE("BF16 widens to F32 exactly and comes back as it was") {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<uint32_t> widened(all.size());
  CopyRowsBF16ToF32(widened.data(), 4 * 256, all.data(), 2 * 256, 256, 256);
  std::vector<uint16_t> back(all.size());
  CopyRowsF32ToBF16(back.data(), 2 * 256, widened.data(), 4 * 256, 256, 256);
  for (size_t i = 0; i < all.size(); ++i) {
    REQUIRE(widened[i] == static_cast<uint32_t>(i) << 16);
    const bool is_nan = (i & 0x7fff) > 0x7f80;
    REQUIRE(back[i] == (is_nan ? 0x7fc0 : i));
  }
}

}  // namespace
}  // namespace lockstep::kernels

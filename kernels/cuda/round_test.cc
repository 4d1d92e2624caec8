#include "kernels/cuda/round.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "kernels/copy_rows_scalar.h"
#include "tests/cuda/stand_in.h"

namespace lockstep::kernels::cuda {
namespace {

using Memory = std::vector<std::byte>;

Memory Noise(size_t bytes) {
  std::mt19937 generator(7);
  Memory noise(bytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(generator());
  return noise;
}

struct Shape {
  uint64_t rows;
  uint64_t row_elements;
  uint64_t extra_src_pitch;
  uint64_t extra_dst_pitch;
  size_t src_at;
  size_t dst_at;
};

const Shape kShapes[] = {{1, 1, 0, 0, 0, 0},    {1, 1000, 0, 0, 4, 2},  {3, 257, 4, 6, 0, 0},   {5, 255, 1, 1, 1, 1},
                         {700, 1, 12, 2, 2, 3}, {256, 256, 0, 0, 3, 1}, {1, 70'001, 0, 0, 0, 0}};

TEST_CASE("Rows are converted on a device as the scalar oracle does it, and nothing beside them is touched") {
  for (const Shape& shape : kShapes) {
    for (const bool rounds : {true, false}) {
      lockstep::cuda::Reset();
      const uint64_t src_element = rounds ? 4 : 2;
      const uint64_t dst_element = rounds ? 2 : 4;
      const uint64_t src_pitch = shape.row_elements * src_element + shape.extra_src_pitch;
      const uint64_t dst_pitch = shape.row_elements * dst_element + shape.extra_dst_pitch;
      const Memory source = Noise(shape.src_at + (shape.rows - 1) * src_pitch + shape.row_elements * src_element);
      Memory target(shape.dst_at + (shape.rows - 1) * dst_pitch + shape.row_elements * dst_element, std::byte{0xa5});
      Memory expected = target;
      const auto start = rounds ? StartRowsF32ToBF16 : StartRowsBF16ToF32;
      const auto oracle = rounds ? scalar::ConvertRowF32ToBF16 : scalar::ConvertRowBF16ToF32;
      for (uint64_t row = 0; row < shape.rows; ++row) {
        oracle(expected.data() + shape.dst_at + row * dst_pitch, source.data() + shape.src_at + row * src_pitch,
               shape.row_elements);
      }
      REQUIRE(start(target.data() + shape.dst_at, dst_pitch, source.data() + shape.src_at, src_pitch, shape.rows,
                    shape.row_elements, nullptr) == cudaSuccess);
      CHECK(target[shape.dst_at] == std::byte{0xa5});  // not yet
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      INFO(shape.rows << " rows of " << shape.row_elements << ", rounds " << rounds);
      CHECK(target == expected);
    }
  }
}

TEST_CASE("Narrow rows are moved on a device as they are, and nothing beside them is touched") {
  for (const Shape& shape : kShapes) {
    for (const uint64_t unit : {1, 2, 4, 8}) {
      lockstep::cuda::Reset();
      const uint64_t row_bytes = shape.row_elements * unit;
      const uint64_t src_pitch = row_bytes + shape.extra_src_pitch;
      const uint64_t dst_pitch = row_bytes + shape.extra_dst_pitch;
      const Memory source = Noise(shape.src_at + (shape.rows - 1) * src_pitch + row_bytes);
      Memory target(shape.dst_at + (shape.rows - 1) * dst_pitch + row_bytes, std::byte{0xa5});
      Memory expected = target;
      for (uint64_t row = 0; row < shape.rows; ++row) {
        std::copy_n(source.begin() + shape.src_at + row * src_pitch, row_bytes,
                    expected.begin() + shape.dst_at + row * dst_pitch);
      }
      REQUIRE(StartNarrowRows(target.data() + shape.dst_at, dst_pitch, source.data() + shape.src_at, src_pitch,
                              shape.rows, row_bytes, nullptr) == cudaSuccess);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      INFO(shape.rows << " rows of " << row_bytes << " bytes");
      CHECK(target == expected);
    }
  }
}

TEST_CASE("Every BF16, the values between and every kind of NaN round as the oracle says") {
  lockstep::cuda::Reset();
  std::vector<uint32_t> values;
  for (uint32_t high = 0; high < 0x1'0000; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(high << 16 | low);
  }
  std::vector<uint16_t> rounded(values.size());
  REQUIRE(StartRowsF32ToBF16(rounded.data(), 0, values.data(), 0, 1, values.size(), nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  for (size_t i = 0; i < values.size(); ++i) {
    INFO(std::hex << values[i]);
    REQUIRE(rounded[i] == scalar::BF16OfF32(std::bit_cast<float>(values[i])));
  }
}

TEST_CASE("Nothing is started for no elements, and a failed launch is told") {
  lockstep::cuda::Reset();
  CHECK(StartRowsF32ToBF16(nullptr, 0, nullptr, 0, 0, 10, nullptr) == cudaSuccess);
  CHECK(lockstep::cuda::Count().under_way == 0);
  uint32_t value = 0;
  lockstep::cuda::FailCall("RoundRows", 1, cudaErrorLaunchFailure);
  CHECK(StartRowsF32ToBF16(&value, 0, &value, 0, 1, 1, nullptr) == cudaErrorLaunchFailure);
}

}  // namespace
}  // namespace lockstep::kernels::cuda

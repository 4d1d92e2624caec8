#include "kernels/cuda/scatter.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "kernels/copy_rows_scalar.h"
#include "kernels/scatter.h"
#include "tests/cuda/stand_in.h"

namespace lockstep::kernels::cuda {
namespace {

using Memory = std::vector<std::byte>;

Memory Noise(size_t bytes, uint32_t seed) {
  std::mt19937 generator(seed);
  Memory noise(bytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(generator());
  return noise;
}

TEST_CASE("Runs of units of every width go where the CPU's scatter puts them, by one launch, and nowhere else") {
  std::mt19937 random(5);
  for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
    for (const uint32_t run_count : {1u, 2u, 3u, 100u}) {
      lockstep::cuda::Reset();
      std::vector<UnitRun> runs;
      std::vector<uint32_t> offsets;
      uint64_t at = random() % 5;
      for (uint32_t run = 0; run < run_count; ++run) {
        runs.push_back({at, offsets.size()});
        for (uint32_t left = random() % 50; left > 0; --left) {
          offsets.push_back(static_cast<uint32_t>(at - runs.back().base));
          at += unit + random() % 7;
        }
      }
      offsets.push_back(static_cast<uint32_t>(at - runs.back().base));
      const Memory values = Noise(offsets.size() * unit, unit);
      Memory target = Noise(at + unit, 9);
      Memory expected = target;
      for (uint32_t run = 0; run < run_count; ++run) {
        const uint64_t first = runs[run].first;
        const uint64_t end = run + 1 < run_count ? runs[run + 1].first : offsets.size();
        ScatterUnits(expected.data() + runs[run].base, unit, offsets.data() + first, values.data() + first * unit,
                     end - first);
      }
      REQUIRE(StartScatter(target.data(), unit, runs.data(), run_count, offsets.data(), values.data(), offsets.size(),
                           nullptr) == cudaSuccess);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      CHECK(target == expected);
      CHECK(lockstep::cuda::Calls("ScatterUnits").size() == 1);
    }
  }
}

TEST_CASE("Rows of every width and alignment are moved whole, and nothing beside them is touched") {
  for (const uint64_t row_bytes : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 24u, 255u, 256u}) {
    for (const uint64_t rows : {1u, 2u, 300u}) {
      for (const uint64_t shift : {0u, 1u, 4u}) {
        lockstep::cuda::Reset();
        const uint64_t src_pitch = row_bytes + 3 * shift;
        const uint64_t dst_pitch = row_bytes + 16;
        const Memory source = Noise(shift + (rows - 1) * src_pitch + row_bytes, 1);
        Memory target = Noise(shift + (rows - 1) * dst_pitch + row_bytes, 2);
        Memory expected = target;
        for (uint64_t row = 0; row < rows; ++row) {
          scalar::CopyRow(expected.data() + shift + row * dst_pitch, source.data() + shift + row * src_pitch,
                          row_bytes);
        }
        REQUIRE(StartCopyRows(target.data() + shift, dst_pitch, source.data() + shift, src_pitch, rows, row_bytes,
                              nullptr) == cudaSuccess);
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        INFO(rows << " rows of " << row_bytes << " from byte " << shift);
        CHECK(target == expected);
      }
    }
  }
}

TEST_CASE("Units of no known width are refused") {
  lockstep::cuda::Reset();
  CHECK(StartScatter(nullptr, 3, nullptr, 0, nullptr, nullptr, 1, nullptr) == cudaErrorInvalidValue);
}

}  // namespace
}  // namespace lockstep::kernels::cuda

#include "kernels/cuda/sum.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "kernels/cuda/sum_testing.h"
#include "tests/cuda/stand_in.h"

namespace lockstep::kernels::cuda {
namespace {

using Memory = std::vector<unsigned char>;

Memory Noise(size_t bytes) {
  std::mt19937 generator(11);
  Memory noise(bytes);
  for (unsigned char& byte : noise) byte = static_cast<unsigned char>(generator());
  return noise;
}

uint64_t OnDevice(const Memory& bytes, size_t from) {
  std::vector<uint64_t> parts(kSumParts, 1);
  REQUIRE(StartSum(bytes.data() + from, bytes.size() - from, parts.data(), nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  return std::accumulate(parts.begin(), parts.end(), uint64_t{0});
}

TEST_CASE("A device sums what the oracle sums, whatever the length and the alignment") {
  lockstep::cuda::Reset();
  for (const size_t bytes : {0, 1, 7, 8, 9, 4095, 8 * 65536 - 1, 8 * 65536, 8 * 65536 + 3, 8 * 200'000 + 5}) {
    for (const size_t from : {0, 3}) {
      INFO(bytes << " bytes from " << from);
      const Memory noise = Noise(bytes + from);
      CHECK(OnDevice(noise, from) == FormatSum(std::as_bytes(std::span(noise).subspan(from))));
    }
  }
}

TEST_CASE("A flipped bit changes the sum, so do two of words' highest bits, and words that changed places") {
  lockstep::cuda::Reset();
  Memory bytes = Noise(1003);
  const uint64_t sum = OnDevice(bytes, 0);
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += 61) {
    bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    CHECK(OnDevice(bytes, 0) != sum);
    bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  }
  for (size_t other = 15; other < 1003; other += 8) {
    for (const size_t byte : {size_t{7}, other}) bytes[byte] ^= 0x80;
    CHECK(OnDevice(bytes, 0) != sum);
    for (const size_t byte : {size_t{7}, other}) bytes[byte] ^= 0x80;
  }
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 800);
  CHECK(OnDevice(bytes, 0) != sum);
}

}  // namespace
}  // namespace lockstep::kernels::cuda

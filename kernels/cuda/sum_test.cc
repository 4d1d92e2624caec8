#include "kernels/cuda/sum.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <vector>

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

// As the header has it, byte by byte.
uint64_t Oracle(const Memory& bytes, size_t from) {
  uint64_t sum = 0;
  for (size_t i = from; i < bytes.size(); ++i) {
    const uint64_t k = ((i - from) / 8 + 1) * 0x9E3779B97F4A7C15;
    const uint64_t key = ((k ^ (k >> 32)) * 0xD6E8FEB86659FD93) | 1;
    sum += (uint64_t{bytes[i]} << (i - from) % 8 * 8) * key;
  }
  return sum;
}

TEST_CASE("A device sums what the oracle sums, whatever the length and the alignment") {
  lockstep::cuda::Reset();
  for (const size_t bytes : {0, 1, 7, 8, 9, 4095, 8 * 65536 - 1, 8 * 65536, 8 * 65536 + 3, 8 * 200'000 + 5}) {
    for (const size_t from : {0, 3}) {
      INFO(bytes << " bytes from " << from);
      const Memory noise = Noise(bytes + from);
      CHECK(OnDevice(noise, from) == Oracle(noise, from));
    }
  }
}

TEST_CASE("A flipped bit changes the sum, and so do words that changed places") {
  lockstep::cuda::Reset();
  Memory bytes = Noise(1003);
  const uint64_t sum = OnDevice(bytes, 0);
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += 61) {
    bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    CHECK(Oracle(bytes, 0) != sum);
    bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  }
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 800);
  CHECK(OnDevice(bytes, 0) != sum);
}

}  // namespace
}  // namespace lockstep::kernels::cuda

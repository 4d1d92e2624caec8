#include "kernels/cuda/changes.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/copy_rows_scalar.h"
#include "kernels/scalar.h"
#include "tests/cuda/stand_in.h"

namespace lockstep::kernels::cuda {
namespace {

struct Found {
  std::vector<uint32_t> positions;
  std::vector<char> values;
};

// Arrays exactly as large as the contract wants them, so that a sanitizer sees what is written past them.
Found Find(const Shadowed& shadowed, const void* after_counting = nullptr) {
  std::vector<uint32_t> counts(StripesOf(shadowed.units), 0xdead);
  REQUIRE(StartCount(shadowed, counts.data(), nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  std::vector<uint64_t> firsts(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), firsts.begin() + 1, std::plus<uint64_t>());
  Found found{std::vector<uint32_t>(firsts.back()), std::vector<char>(firsts.back() * shadowed.unit)};
  Shadowed then = shadowed;
  if (after_counting != nullptr) then.tensor = after_counting;
  REQUIRE(StartTake(then, firsts.data(), found.positions.data(), found.values.data(), nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  return found;
}

void CheckAgainstOracle(const std::vector<char>& before, const std::vector<char>& after, const Found& found,
                        uint32_t unit) {
  std::vector<uint32_t> positions(after.size() / unit);
  std::vector<uint64_t> steps(positions.size());
  positions.resize(
      scalar::FindChanges(before.data(), after.data(), after.size(), unit, positions.data(), steps.data()));
  CHECK(found.positions == positions);
  std::vector<char> advanced = before;
  for (size_t i = 0; i < found.positions.size(); ++i) {
    std::memcpy(advanced.data() + size_t{found.positions[i]} * unit, found.values.data() + i * unit, unit);
  }
  CHECK(advanced == after);
}

std::vector<char> Noise(size_t bytes, std::mt19937_64& random) {
  std::vector<char> noise(bytes);
  for (char& byte : noise) byte = static_cast<char>(random());
  return noise;
}

TEST_CASE("Changed units are those of the scalar oracle, and the shadow is the tensor afterwards") {
  lockstep::cuda::Reset();
  std::mt19937_64 random(3);
  for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
    for (const size_t units : {0, 1, 63, 64, 65, 1000, 16384, 40001}) {
      for (const double density : {0.0, 0.01, 0.12, 1.0}) {
        INFO(units << " units of " << unit << ", " << density << " of the bytes new");
        const std::vector<char> before = Noise(units * unit, random);
        std::vector<char> tensor = before;
        std::bernoulli_distribution changes(density);
        for (char& byte : tensor) {
          if (changes(random)) byte = static_cast<char>(random());
        }
        std::vector<char> shadow = before;
        const Shadowed shadowed{.tensor = tensor.data(), .shadow = shadow.data(), .units = units, .unit = unit};
        CheckAgainstOracle(before, tensor, Find(shadowed), unit);
        CHECK(shadow == tensor);
        CHECK(Find(shadowed).positions.empty());
      }
    }
  }
}

TEST_CASE("Masters are compared as they are rounded: what rounds to the same has not changed") {
  lockstep::cuda::Reset();
  std::mt19937_64 random(4);
  std::vector<float> masters(5000);
  std::vector<uint16_t> shadow(masters.size());
  for (size_t i = 0; i < masters.size(); ++i) {
    masters[i] = std::bit_cast<float>(static_cast<uint32_t>(random()));
    shadow[i] = scalar::BF16OfF32(masters[i]);
    if (i % 3 == 0) masters[i] *= 1 + 1e-3F;
  }
  std::vector<char> before(2 * shadow.size());
  std::memcpy(before.data(), shadow.data(), before.size());
  std::vector<char> after(before.size());
  for (size_t i = 0; i < masters.size(); ++i) {
    const uint16_t rounded = scalar::BF16OfF32(masters[i]);
    std::memcpy(after.data() + 2 * i, &rounded, 2);
  }
  const Found found = Find({.tensor = masters.data(), .shadow = shadow.data(), .units = shadow.size(), .rounds = true});
  CheckAgainstOracle(before, after, found, 2);
  CHECK(!found.positions.empty());
  CHECK(found.positions.size() < masters.size() / 3);
  CHECK(std::memcmp(shadow.data(), after.data(), after.size()) == 0);
}

TEST_CASE("A tensor that changes after it was counted writes nothing past its room, and the rest is found next time") {
  lockstep::cuda::Reset();
  std::vector<uint16_t> shadow(200);
  std::vector<uint16_t> tensor(200);
  tensor[70] = 1;
  const std::vector<uint16_t> later(200, 7);
  Shadowed shadowed{.tensor = tensor.data(), .shadow = shadow.data(), .units = 200};
  CHECK(Find(shadowed, later.data()).positions == std::vector<uint32_t>{64});
  CHECK(std::accumulate(shadow.begin(), shadow.end(), 0) == 7);
  shadowed.tensor = later.data();
  CHECK(Find(shadowed).positions.size() == 199);
  CHECK(shadow == later);
}

TEST_CASE("A unit that there is not, and rounding to other than two bytes, are refused") {
  lockstep::cuda::Reset();
  CHECK(StartCount({.units = 1, .unit = 3}, nullptr, nullptr) == cudaErrorInvalidValue);
  CHECK(StartTake({.units = 1, .unit = 4, .rounds = true}, nullptr, nullptr, nullptr, nullptr) ==
        cudaErrorInvalidValue);
}

}  // namespace
}  // namespace lockstep::kernels::cuda

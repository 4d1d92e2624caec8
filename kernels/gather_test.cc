#include "kernels/gather.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "kernels/scalar.h"

namespace lockstep::kernels {
namespace {

std::vector<char> Noise(size_t bytes, std::mt19937_64& random) {
  std::vector<char> noise(bytes);
  for (char& byte : noise) byte = static_cast<char>(random());
  return noise;
}

// Places of `count` units that do not overlap, at any alignment, in any order.
std::vector<uint32_t> Offsets(size_t count, uint32_t unit, bool rising, std::mt19937_64& random) {
  std::vector<uint32_t> offsets;
  uint32_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    offsets.push_back(next + static_cast<uint32_t>(random() % 300));
    next = offsets.back() + unit;
  }
  if (!rising) std::shuffle(offsets.begin(), offsets.end(), random);
  return offsets;
}

size_t Room(const std::vector<uint32_t>& offsets, uint32_t unit) {
  return offsets.empty() ? 1 : *std::max_element(offsets.begin(), offsets.end()) + unit + 1;
}

template <typename Check>
void ForEveryCase(Check check) {
  std::mt19937_64 random(5);
  for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
    for (const size_t count : {0, 1, 2, 31, 32, 33, 64, 100, 5003}) {
      for (const bool rising : {true, false}) {
        INFO(count << " units of " << unit << (rising ? ", rising" : ", shuffled"));
        check(unit, Offsets(count, unit, rising, random), random);
      }
    }
  }
}

TEST_CASE("Gathered units are those that the scalar oracle finds, side by side") {
  ForEveryCase([](uint32_t unit, const std::vector<uint32_t>& offsets, std::mt19937_64& random) {
    const std::vector<char> source = Noise(Room(offsets, unit) + 1, random);
    std::vector<char> values(offsets.size() * unit + 2, 'x');
    std::vector<char> expected = values;
    scalar::GatherUnits(source.data() + 1, unit, offsets.data(), expected.data() + 1, offsets.size());
    GatherUnits(source.data() + 1, unit, offsets.data(), values.data() + 1, offsets.size());
    CHECK(values == expected);
  });
}

}  // namespace
}  // namespace lockstep::kernels

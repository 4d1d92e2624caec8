#include "kernels/apply.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "kernels/each_target.h"
#include "kernels/hash.h"
#include "kernels/scalar.h"

namespace lockstep::kernels {
namespace {

struct Delta {
  std::vector<uint32_t> positions;
  std::vector<uint64_t> steps;

  Delta(size_t units, uint32_t unit, double density, std::mt19937_64& random) {
    for (uint32_t i = 0; i < units; ++i) {
      const bool edge = i == 0 || i + 1 == units;  // both ends always change
      if (!edge && std::generate_canonical<double, 32>(random) >= density) continue;
      positions.push_back(i);
      steps.push_back(random() >> (64 - 8 * unit));
    }
  }
};

TEST_CASE("Adding and hashing in one pass is adding and then hashing, on every target, size and start") {
  std::mt19937_64 random(1);
  for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
    for (const size_t units : {0, 1, 7, 120, 129, 1000, 4096, 4099, 20000}) {
      for (const size_t count : {0, 1, 2, 5}) {
        const double density = count == 2 ? 1.0 : 0.02;
        std::vector<uint8_t> before(units * unit + 1);
        for (uint8_t& byte : before) byte = static_cast<uint8_t>(random());
        std::vector<Delta> deltas;
        for (size_t i = 0; i < count; ++i) deltas.emplace_back(units, unit, density, random);
        std::vector<uint8_t> expected = before;
        for (const Delta& delta : deltas) {
          scalar::AddSteps(expected.data() + 1, unit, delta.positions.data(), delta.steps.data(), delta.steps.size());
        }
        const uint64_t hash = Hash64(expected.data() + 1, units * unit);
        ForEachTarget([&] {
          INFO(units << " units of " << unit << ", " << count << " deltas");
          std::vector<uint8_t> block = before;
          std::vector<BlockChanges> changes;
          for (const Delta& delta : deltas) {
            changes.push_back({delta.positions.data(), delta.steps.data(), delta.steps.size()});
          }
          FetchFront(block.data() + 1, units * unit);
          REQUIRE(AddStepsAndHash(block.data() + 1, units * unit, unit, changes) == hash);
          CHECK(block == expected);
          for (const BlockChanges& left : changes) CHECK(left.count == 0);
        });
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels

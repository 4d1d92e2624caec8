#include "kernels/diff.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/scalar.h"

namespace lockstep::kernels {
namespace {

struct Found {
  std::vector<uint32_t> positions;
  std::vector<uint64_t> steps;
  bool operator==(const Found&) const = default;
};

template <typename F>
Found Run(F find, const char* a, const char* b, size_t bytes, uint32_t unit) {
  Found found{std::vector<uint32_t>(bytes / unit), std::vector<uint64_t>(bytes / unit)};
  const size_t count = find(a, b, bytes, unit, found.positions.data(), found.steps.data());
  found.positions.resize(count);
  found.steps.resize(count);
  return found;
}

TEST_CASE("FindChanges equals the scalar oracle on odd sizes, misaligned starts and every density") {
  std::mt19937_64 random(7);
  for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
    for (const size_t units : {0, 1, 31, 32, 33, 100, 4096, 5003}) {
      for (const double density : {0.0, 0.01, 0.5, 1.0}) {
        const size_t bytes = units * unit;
        std::vector<char> base(bytes + 1), target(bytes + 1);
        for (char& c : base) c = static_cast<char>(random());
        target = base;
        for (size_t i = 1; i < bytes + 1; ++i) {
          if (std::generate_canonical<double, 32>(random) < density) target[i] = static_cast<char>(random());
        }
        const Found expected = Run(scalar::FindChanges, base.data() + 1, target.data() + 1, bytes, unit);
        CHECK(Run(FindChanges, base.data() + 1, target.data() + 1, bytes, unit) == expected);
        AddSteps(base.data() + 1, unit, expected.positions.data(), expected.steps.data(), expected.steps.size());
        CHECK(base == target);
      }
    }
  }
}

TEST_CASE("Steps are differences of raw bits: signed zeros and NaNs are bytes like any other") {
  const uint16_t base[] = {0x0000, 0x7fc0, 0x3f80, 0x3f80};
  const uint16_t target[] = {0x8000, 0x7fc1, 0x3f7f, 0x3f80};
  const Found found =
      Run(FindChanges, reinterpret_cast<const char*>(base), reinterpret_cast<const char*>(target), 8, 2);
  CHECK(found.positions == std::vector<uint32_t>{0, 1, 2});
  CHECK(found.steps == std::vector<uint64_t>{0x8000, 1, 0xffff});
}

}  // namespace
}  // namespace lockstep::kernels

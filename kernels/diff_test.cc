#include "kernels/diff.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/each_target.h"
#include "kernels/hash.h"
#include "kernels/scalar.h"

namespace lockstep::kernels {
namespace {

struct Found {
  std::vector<uint32_t> positions;
  std::vector<uint64_t> steps;
  bool operator==(const Found&) const = default;
};

// Arrays exactly as large as the contract wants them, so that a sanitizer sees what is written past them.
template <typename F>
Found Run(F find, const char* a, const char* b, size_t bytes, uint32_t unit) {
  Found found{std::vector<uint32_t>(bytes / unit), std::vector<uint64_t>(bytes / unit)};
  const size_t count = find(a, b, bytes, unit, found.positions.data(), found.steps.data());
  found.positions.resize(count);
  found.steps.resize(count);
  return found;
}

size_t Find(const void* base, const void* target, size_t bytes, uint32_t unit, uint32_t* positions, uint64_t* steps) {
  return FindChangesAndHash(base, target, bytes, unit, positions, steps).changes;
}

// Two images, `misaligned` bytes into their memory, that differ in about `density` of their bytes.
struct Images {
  std::vector<char> base;
  std::vector<char> target;
  size_t misaligned;

  Images(size_t bytes, size_t misaligned, double density, std::mt19937_64& random)
      : base(bytes + misaligned), misaligned(misaligned) {
    for (char& c : base) c = static_cast<char>(random());
    target = base;
    std::bernoulli_distribution changes(density);
    for (char& c : target) {
      if (changes(random)) c = static_cast<char>(random());
    }
  }
  const char* a() const { return base.data() + misaligned; }
  const char* b() const { return target.data() + misaligned; }
  size_t bytes() const { return base.size() - misaligned; }
};

void CheckAgainstOracle(const Images& images, uint32_t unit) {
  const Found expected = Run(scalar::FindChanges, images.a(), images.b(), images.bytes(), unit);
  uint64_t hash = 0;
  const auto find = [&](auto... arguments) {
    const Diff diff = FindChangesAndHash(arguments...);
    hash = diff.hash;
    return diff.changes;
  };
  const Found found = Run(find, images.a(), images.b(), images.bytes(), unit);
  CHECK(found == expected);
  CHECK(hash == Hash64(images.b(), images.bytes()));
  std::vector<char> block(images.a(), images.a() + images.bytes());
  scalar::AddSteps(block.data(), unit, found.positions.data(), found.steps.data(), found.steps.size());
  CHECK(std::equal(block.begin(), block.end(), images.b()));
}

TEST_CASE("Changes and hash equal the oracle's on odd sizes, misaligned starts and every density") {
  ForEachTarget([] {
    std::mt19937_64 random(7);
    for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
      // Around the ends of stripes (64 bytes), of xxh3's pieces (1 KiB) and of slices (4 and 16 KiB).
      for (const size_t bytes :
           {0, 8, 56, 64, 72, 240, 256, 1016, 1024, 1032, 1088, 2104, 4096, 4160, 4232, 16448, 40008}) {
        for (const double density : {0.0, 0.01, 0.3, 1.0}) {
          INFO(bytes << " bytes in units of " << unit << ", " << density << " of them new");
          CheckAgainstOracle(Images(bytes, random() % 3, density, random), unit);
        }
      }
    }
  });
}

TEST_CASE("A whole block is compared and hashed as the oracle does, whatever its units") {
  ForEachTarget([] {
    std::mt19937_64 random(8);
    for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
      for (const double density : {0.0, 0.0005, 0.005, 0.7}) {
        INFO("units of " << unit << ", " << density << " of the bytes new");
        CheckAgainstOracle(Images(256 * 1024, 0, density, random), unit);
      }
    }
  });
}

TEST_CASE("One change is found wherever it is") {
  ForEachTarget([] {
    std::mt19937_64 random(9);
    Images images(9 * 1024 + 40, 0, 0, random);
    for (size_t at = 0; at < images.target.size(); at += 1 + random() % 13) {
      const char before = images.target[at];
      images.target[at] = static_cast<char>(before + 1);
      for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
        const Found found = Run(Find, images.a(), images.b(), images.bytes(), unit);
        REQUIRE(found.positions == std::vector<uint32_t>{static_cast<uint32_t>(at / unit)});
        REQUIRE(found.steps == Run(scalar::FindChanges, images.a(), images.b(), images.bytes(), unit).steps);
      }
      images.target[at] = before;
    }
  });
}

TEST_CASE("Steps are differences of raw bits: signed zeros and NaNs are bytes like any other") {
  ForEachTarget([] {
    const uint16_t base[] = {0x0000, 0x7fc0, 0x3f80, 0x3f80};
    const uint16_t target[] = {0x8000, 0x7fc1, 0x3f7f, 0x3f80};
    // Far enough into the block that vectors do the work.
    std::vector<char> a(4096), b(4096);
    std::memcpy(a.data() + 64, base, sizeof base);
    std::memcpy(b.data() + 64, target, sizeof target);
    const Found found = Run(Find, a.data(), b.data(), a.size(), 2);
    CHECK(found.positions == std::vector<uint32_t>{32, 33, 34});
    CHECK(found.steps == std::vector<uint64_t>{0x8000, 1, 0xffff});
  });
}

}  // namespace
}  // namespace lockstep::kernels

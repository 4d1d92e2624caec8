#include "common/payload/block_codec.h"

#include <catch2/catch.hpp>
#include <random>

namespace lockstep {
namespace {

uint64_t Mask(uint32_t unit) {
  return unit == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * unit)) - 1;
}

Changes RandomChanges(std::mt19937_64& random, uint32_t unit, size_t block_bytes, double density) {
  Changes changes;
  for (uint32_t i = 0; i < block_bytes / unit; ++i) {
    if (std::generate_canonical<double, 32>(random) >= density) continue;
    uint64_t step = random() % 8 == 0 ? random() : random() % 3 + 1;
    if (random() % 2 == 0) step = ~step + 1;
    step &= Mask(unit);
    changes.positions.push_back(i);
    changes.steps.push_back(step == 0 ? 1 : step);
  }
  if (changes.size() == 0) {
    changes.positions.push_back(static_cast<uint32_t>(block_bytes / unit - 1));
    changes.steps.push_back(Mask(unit));
  }
  return changes;
}

TEST_CASE("Sparse coding round-trips at every unit and density") {
  std::mt19937_64 random(1);
  for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
    for (const double density : {0.0, 0.0003, 0.01, 0.3, 1.0}) {
      const Changes changes = RandomChanges(random, unit, 64 * 1024, density);
      Bytes coded;
      EncodeSparse(changes, unit, CodecLevel::kCompact, coded);
      Changes decoded;
      REQUIRE(DecodeSparse(coded, unit, 64 * 1024, decoded).ok());
      CHECK(decoded.positions == changes.positions);
      CHECK(decoded.steps == changes.steps);
    }
  }
}

TEST_CASE("Training-like changes take well under two bytes each") {
  std::mt19937_64 random(2);
  Changes changes;
  for (uint32_t i = 0; i < 128 * 1024; ++i) {
    if (random() % 100 != 0) continue;
    const uint64_t magnitude = random() % 100 < 88 ? 1 : random() % 7 + 2;
    changes.positions.push_back(i);
    changes.steps.push_back((random() % 2 == 0 ? magnitude : ~magnitude + 1) & 0xffff);
  }
  Bytes coded;
  EncodeSparse(changes, 2, CodecLevel::kCompact, coded);
  CHECK(coded.size() < changes.size() * 1.6);
}

TEST_CASE("Every truncation of a coded block is refused") {
  std::mt19937_64 random(3);
  for (const double density : {0.001, 0.05}) {
    const Changes changes = RandomChanges(random, 2, 16 * 1024, density);
    Bytes coded;
    EncodeSparse(changes, 2, CodecLevel::kCompact, coded);
    Changes decoded;
    for (size_t cut = 0; cut < coded.size(); ++cut) {
      CHECK(DecodeSparse(ByteView(coded).first(cut), 2, 16 * 1024, decoded).code() == ErrorCode::kCorrupt);
    }
    coded.push_back(std::byte{0});
    CHECK_FALSE(DecodeSparse(coded, 2, 16 * 1024, decoded).ok());
  }
}

TEST_CASE("Positions past the block, zero counts and foreign flags are refused") {
  Changes one{.positions = {100}, .steps = {1}};
  Bytes coded;
  EncodeSparse(one, 2, CodecLevel::kCompact, coded);
  Changes decoded;
  CHECK(DecodeSparse(coded, 2, 202, decoded).ok());
  CHECK(DecodeSparse(coded, 2, 200, decoded).message().find("past the end") != std::string::npos);
  CHECK_FALSE(DecodeSparse(coded, 3, 202, decoded).ok());
  Bytes bad = coded;
  bad[0] = std::byte{8};
  CHECK(DecodeSparse(bad, 2, 202, decoded).message().find("flags") != std::string::npos);
  bad = coded;
  bad[1] = std::byte{0};
  CHECK_FALSE(DecodeSparse(bad, 2, 202, decoded).ok());
}

TEST_CASE("Random bytes never decode past their block") {
  std::mt19937_64 random(4);
  Changes decoded;
  for (int round = 0; round < 20000; ++round) {
    Bytes noise(random() % 64);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    if (!noise.empty()) noise[0] = static_cast<std::byte>(random() % 4);
    if (DecodeSparse(noise, 2, 4096, decoded).ok()) {
      for (const uint32_t position : decoded.positions) REQUIRE(position < 2048);
    }
  }
}

TEST_CASE("Folding adds steps, merges positions and drops what returns to its old value") {
  const Changes first{.positions = {1, 5, 9}, .steps = {1, 0xffff, 7}};
  const Changes second{.positions = {0, 5, 9}, .steps = {3, 1, 1}};
  Changes folded;
  FoldChanges(first, second, 2, folded);
  CHECK(folded.positions == std::vector<uint32_t>{0, 1, 9});
  CHECK(folded.steps == std::vector<uint64_t>{3, 1, 8});
}

}  // namespace
}  // namespace lockstep

#include "common/payload/block_codec.h"

#include <zstd.h>

#include <catch2/catch.hpp>
#include <random>

#include "common/base/status_testing.h"

namespace lockstep::payload {
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

constexpr size_t kBlock = 64 * 1024;

Bytes Encoded(const Changes& changes, uint32_t unit, CodecLevel level) {
  Bytes coded;
  EncodeSparse(changes, unit, level, coded);
  coded.shrink_to_fit();  // so that a sanitizer sees a read past the end
  return coded;
}

void CheckDecodesTo(const Changes& changes, ByteView coded, uint32_t unit, size_t block_bytes) {
  Changes decoded;
  REQUIRE(DecodeSparse(coded, unit, block_bytes, decoded).ok());
  CHECK(decoded.positions == changes.positions);
  CHECK(decoded.steps == changes.steps);
}

// What training in bf16 makes of a block of 256 KiB.
Changes TrainingChanges(double density) {
  std::mt19937_64 random(2);
  Changes changes;
  for (uint32_t i = 0; i < 128 * 1024; ++i) {
    if (std::generate_canonical<double, 32>(random) >= density) continue;
    const uint64_t magnitude = random() % 100 < 88 ? 1 : random() % 7 + 2;
    changes.positions.push_back(i);
    changes.steps.push_back((random() % 2 == 0 ? magnitude : ~magnitude + 1) & 0xffff);
  }
  return changes;
}

TEST_CASE("Sparse coding round-trips at every level, unit and density") {
  std::mt19937_64 random(1);
  for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
    for (const double density : {0.0, 0.0003, 0.01, 0.3, 1.0}) {
      for (const CodecLevel level : CodecLevel::All()) {
        const Changes changes = RandomChanges(random, unit, kBlock, density);
        CheckDecodesTo(changes, Encoded(changes, unit, level), unit, kBlock);
      }
    }
  }
}

TEST_CASE("The extremes of every unit round-trip: first and last place, smallest and largest step") {
  for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
    const uint64_t top = uint64_t{1} << (8 * unit - 1);
    const auto last = static_cast<uint32_t>(kBlock / unit - 1);
    for (const uint64_t step : {uint64_t{1}, Mask(unit), top, top - 1, top + 1}) {
      const Changes changes{.positions = {0, last}, .steps = {step, Mask(unit)}};
      CheckDecodesTo(changes, Encoded(changes, unit, CodecLevel::kFast), unit, kBlock);
      CheckDecodesTo({.positions = {last}, .steps = {step}},
                     Encoded({.positions = {last}, .steps = {step}}, unit, CodecLevel::kCompact), unit, kBlock);
    }
  }
}

TEST_CASE("Every step of small units round-trips, at every width of low bits") {
  for (const uint32_t unit : {1u, 2u}) {
    for (uint64_t from = 1; from <= Mask(unit); from += 97) {
      Changes changes;
      for (uint64_t step = from; step <= std::min(from + 96, Mask(unit)); ++step) {
        changes.positions.push_back(static_cast<uint32_t>(3 * changes.size()));
        changes.steps.push_back(step);
      }
      CheckDecodesTo(changes, Encoded(changes, unit, CodecLevel::kFast), unit, kBlock);
    }
  }
}

TEST_CASE("Training-like changes take well under two bytes each, and a fifth less with an entropy stage") {
  for (const double density : {0.003, 0.01, 0.1}) {
    const Changes changes = TrainingChanges(density);
    const auto bytes_each = [&](CodecLevel level) {
      return static_cast<double>(Encoded(changes, 2, level).size()) / static_cast<double>(changes.size());
    };
    CHECK(bytes_each(CodecLevel::kFast) < 2.0);
    CHECK(bytes_each(CodecLevel::kCompact) < 0.87 * bytes_each(CodecLevel::kFast));
  }
}

TEST_CASE("Large steps, as of fp32, take the bits that they need and not a unit each") {
  std::mt19937_64 random(5);
  Changes changes;
  for (uint32_t i = 0; i < 16 * 1024; ++i) {
    changes.positions.push_back(i);
    changes.steps.push_back(random() % 4000 + 1);
  }
  const Bytes coded = Encoded(changes, 4, CodecLevel::kFast);
  CHECK(static_cast<double>(coded.size()) < 2.3 * static_cast<double>(changes.size()));
  CheckDecodesTo(changes, coded, 4, kBlock);
}

TEST_CASE("A level is one row: blocks are encoded at it, and decoded like all others") {
  // zstd's slowest search, which finds short repeats; the entropy stage of kCompact leaves them.
  static constexpr CodecLevel::Row kHard = {
      .name = "hard", .compress_controls = [](std::span<const uint8_t> controls, Bytes& frame) {
        frame.resize(ZSTD_compressBound(controls.size()));
        frame.resize(ZSTD_compress(frame.data(), frame.size(), controls.data(), controls.size(), 19));
        return frame.size() < controls.size();
      }};
  // One unit up or down in words of three that repeat in no order.
  Changes changes;
  uint32_t random = 1;
  uint32_t position = 0;
  for (uint32_t i = 0; i < 4000; ++i) {
    if (i % 3 == 0) random = random * 1664525 + 1013904223;
    const uint32_t word = random >> 28;
    position += 1 + (word * 7 + i % 3 * 5) % 6;
    changes.positions.push_back(position);
    changes.steps.push_back((word + i % 3) % 2 == 0 ? 1 : 0xffff);
  }
  const Bytes hard = Encoded(changes, 2, CodecLevel(kHard));
  for (const CodecLevel lower : CodecLevel::All()) CHECK(hard.size() < Encoded(changes, 2, lower).size());
  CheckDecodesTo(changes, hard, 2, kBlock);
}

TEST_CASE("The positions alone are those of the whole decoder, and refused where it refuses them") {
  std::mt19937_64 random(8);
  for (const CodecLevel level : CodecLevel::All()) {
    for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
      const Changes changes = RandomChanges(random, unit, kBlock, 0.02);
      const Bytes coded = Encoded(changes, unit, level);
      std::vector<uint32_t> positions;
      REQUIRE(DecodePositions(coded, unit, kBlock, positions).ok());
      CHECK(positions == changes.positions);
      const size_t too_small = changes.positions.back() * unit;
      CHECK_THAT(DecodePositions(coded, unit, too_small, positions), FailsWith(ErrorCode::kCorrupt, "coded block: "));
      CHECK_THAT(DecodePositions(ByteView(coded).first(4), unit, kBlock, positions),
                 FailsWith(ErrorCode::kCorrupt, "coded block: "));
    }
  }
}

TEST_CASE("Every truncation of a coded block is refused") {
  std::mt19937_64 random(3);
  for (const CodecLevel level : CodecLevel::All()) {
    for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
      for (const double density : {0.001, 0.05}) {
        const Bytes coded = Encoded(RandomChanges(random, unit, 16 * 1024, density), unit, level);
        Changes decoded;
        for (size_t cut = 0; cut < coded.size(); ++cut) {
          const Bytes bad(coded.begin(), coded.begin() + static_cast<std::ptrdiff_t>(cut));
          CHECK_THAT(DecodeSparse(bad, unit, 16 * 1024, decoded), FailsWith(ErrorCode::kCorrupt, "coded block: "));
        }
        Bytes longer = coded;
        longer.push_back(std::byte{0});
        CHECK_THAT(DecodeSparse(longer, unit, 16 * 1024, decoded),
                   FailsWith(ErrorCode::kCorrupt, "coded block: bytes after the last escape"));
      }
    }
  }
}

std::string Problem(std::initializer_list<int> coded, uint32_t unit, size_t block_bytes) {
  Bytes bytes;
  for (const int byte : coded) bytes.push_back(static_cast<std::byte>(byte));
  Changes decoded;
  const Status status = DecodeSparse(bytes, unit, block_bytes, decoded);
  return status.ok() ? "" : status.message();
}

TEST_CASE("Positions past the block are refused, escaped or not") {
  const Bytes coded = Encoded({.positions = {100}, .steps = {1}}, 2, CodecLevel::kFast);
  Changes decoded;
  CHECK(DecodeSparse(coded, 2, 202, decoded).ok());
  CHECK_THAT(DecodeSparse(coded, 2, 200, decoded), FailsWith(ErrorCode::kCorrupt, "past the end"));
  CHECK(Problem({0, 0, 1, 0x03}, 2, 8).empty());
  CHECK(Problem({0, 0, 1, 0x04}, 2, 8).find("past the end") != std::string::npos);
  CHECK(Problem({0, 0, 2, 0x03, 0x00}, 2, 8).find("past the end") != std::string::npos);
  CHECK(Problem({0, 0, 1, 0x0f, 0x05}, 2, 42).empty());
  CHECK(Problem({0, 0, 1, 0x0f, 0x05}, 2, 40).find("past the end") != std::string::npos);
  // An escape near 2^64 does not come round again.
  CHECK(Problem({0, 0, 1, 0x0f, 0xf5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 2, 42)
            .find("past the end") != std::string::npos);
}

TEST_CASE("Zero steps and steps that do not fit their unit are refused") {
  // Code 255 of one byte would be a step of zero: escape 255 − 15; 254 is −128.
  CHECK(Problem({0, 0, 1, 0xf0, 0xef, 0x01}, 1, 8).empty());
  CHECK(Problem({0, 0, 1, 0xf0, 0xf0, 0x01}, 1, 8).find("zero") != std::string::npos);
  CHECK(Problem({0, 0, 1, 0xf0, 0xf1, 0x01}, 1, 8).find("too large") != std::string::npos);
  CHECK(Problem({0, 0, 1, 0xf0, 0xf5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 8, 8).find("too large") !=
        std::string::npos);
  // The same with three low bits, all set: 255 again.
  CHECK(Problem({0, 3, 1, 0xf0, 0x06, 0x10}, 1, 8).empty());
  CHECK(Problem({0, 3, 1, 0xf0, 0x07, 0x10}, 1, 8).find("zero") != std::string::npos);
}

TEST_CASE("Impossible counts, widths and units are refused") {
  CHECK(Problem({0, 0, 0}, 2, 8).find("0 changes") != std::string::npos);
  CHECK(Problem({0, 0, 5, 0, 0, 0, 0, 0}, 2, 8).find("5 changes among 4") != std::string::npos);
  CHECK(Problem({21, 0, 1, 0, 0, 0, 0}, 2, 8).find("widths") != std::string::npos);
  CHECK(Problem({0, 12, 1, 0, 0, 0}, 2, 8).find("widths") != std::string::npos);
  CHECK(Problem({0, 0, 1, 0}, 3, 9).find("unit") != std::string::npos);
  // A million changes in a coded block of six bytes: refused before memory is taken for them.
  CHECK(Problem({0, 0, 0xc0, 0x84, 0x3d, 0}, 1, 1 << 20).find("truncated") != std::string::npos);
  CHECK(Problem({0x80, 0, 4, 2, 1, 2}, 2, 8).find("decompress") != std::string::npos);
}

TEST_CASE("Whatever is done to a coded block, what still decodes stays inside its block") {
  std::mt19937_64 random(4);
  Changes decoded;
  size_t survivors = 0;
  for (int round = 0; round < 40000; ++round) {
    const uint32_t unit = 1u << random() % 4;
    const auto level = random() % 2 == 0 ? CodecLevel::kFast : CodecLevel::kCompact;
    Bytes coded = Encoded(RandomChanges(random, unit, 4096, 0.1 * static_cast<double>(random() % 5)), unit, level);
    for (uint64_t edits = random() % 3 + 1; edits > 0; --edits) {
      const size_t at = random() % 3 == 0 ? random() % std::min<size_t>(coded.size(), 8) : random() % coded.size();
      coded[at] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) coded.resize(random() % (coded.size() + 8));
    coded.shrink_to_fit();
    if (!DecodeSparse(coded, unit, 4096, decoded).ok()) continue;
    ++survivors;
    REQUIRE(decoded.positions.size() == decoded.steps.size());
    REQUIRE(decoded.positions.back() < 4096 / unit);
    for (size_t i = 0; i < decoded.size(); ++i) {
      REQUIRE((i == 0 || decoded.positions[i - 1] < decoded.positions[i]));
      REQUIRE((decoded.steps[i] != 0 && decoded.steps[i] <= Mask(unit)));
    }
  }
  CHECK(survivors > 1000);
}

}  // namespace
}  // namespace lockstep::payload

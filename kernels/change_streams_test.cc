#include "kernels/change_streams.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "kernels/each_target.h"

namespace lockstep::kernels {
namespace {

uint64_t Mask(uint32_t bytes) {
  return ~uint64_t{0} >> (64 - 8 * bytes);
}

// A step as a signed number to its code, by cases: the contract's own words.
uint64_t CodeByCases(uint64_t step, uint32_t unit) {
  const uint64_t top = uint64_t{1} << (8 * unit - 1);
  const uint64_t magnitude = (step & top) != 0 ? (~step + 1) & Mask(unit) : step;
  return 2 * (magnitude - 1) + ((step & top) != 0 ? 0 : 1);
}

struct Input {
  std::vector<uint32_t> positions;
  std::vector<uint64_t> steps;

  Input(size_t count, uint32_t unit, uint64_t seed) {
    std::mt19937_64 random(seed);
    uint32_t next = 0;
    for (size_t i = 0; i < count; ++i) {
      positions.push_back(next + static_cast<uint32_t>(random() % (random() % 9 == 0 ? 5000 : 40)));
      next = positions.back() + 1;
      uint64_t step = random() % 4 == 0 ? random() : random() % 5 + 1;
      if (random() % 2 == 0) step = ~step + 1;
      step &= Mask(unit);
      steps.push_back(step == 0 ? 1 : step);
    }
  }
};

TEST_CASE("Gaps are split into low bits and control bytes, and joined again, on every target") {
  ForEachTarget([] {
    for (const size_t count : {0, 1, 2, 15, 16, 17, 63, 64, 65, 1003}) {
      for (const uint32_t bits : {0u, 1u, 5u, 12u, 20u}) {
        INFO(count << " gaps, " << bits << " low bits");
        const Input input(count, 2, count + bits);
        std::vector<uint32_t> gaps(count);
        std::vector<uint8_t> controls(count, 0xff);
        const size_t escaped = SplitGaps(input.positions.data(), count, bits, gaps.data(), controls.data());
        size_t expected = 0;
        for (size_t i = 0; i < count; ++i) {
          const uint32_t gap = input.positions[i] - (i == 0 ? 0 : input.positions[i - 1] + 1);
          REQUIRE(gaps[i] == gap);
          REQUIRE(controls[i] == std::min(gap >> bits, kEscape));
          if (gap >> bits >= kEscape) ++expected;
        }
        CHECK(escaped == expected);
        for (uint32_t& gap : gaps) gap &= (1u << bits) - 1;
        JoinGaps(controls.data(), count, bits, gaps.data());
        uint64_t next = 0;
        for (size_t i = 0; i < count; ++i) {
          const uint32_t gap = input.positions[i] - static_cast<uint32_t>(next);
          if (gap >> bits < kEscape) REQUIRE(gaps[i] == gap);
          gaps[i] = gap;
          next = uint64_t{input.positions[i]} + 1;
        }
        CHECK(SumGaps(gaps.data(), count) == next);
        CHECK(gaps == input.positions);
      }
    }
  });
}

TEST_CASE("Steps of every unit are split into low bits and control bytes, and joined again, on every target") {
  ForEachTarget([] {
    for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
      for (const size_t count : {0, 1, 15, 16, 17, 64, 65, 1003}) {
        for (const uint32_t bits : {0u, 1u, 3u, 8 * unit - 5}) {
          INFO(count << " steps of " << unit << " bytes, " << bits << " low bits");
          const Input input(count, unit, count + bits);
          std::vector<uint64_t> codes(count);
          std::vector<uint8_t> controls(count, 0xf7);
          const size_t escaped = SplitSteps(input.steps.data(), count, unit, bits, codes.data(), controls.data());
          size_t expected = 0;
          for (size_t i = 0; i < count; ++i) {
            const uint64_t code = CodeByCases(input.steps[i], unit);
            REQUIRE(codes[i] == code);
            REQUIRE(controls[i] == (7 | std::min<uint64_t>(code >> bits, kEscape) << 4));
            if (code >> bits >= kEscape) ++expected;
            codes[i] &= (uint64_t{1} << bits) - 1;
          }
          CHECK(escaped == expected);
          JoinSteps(controls.data(), count, unit, bits, codes.data());
          for (size_t i = 0; i < count; ++i) {
            if (controls[i] >> 4 < kEscape) REQUIRE(codes[i] == input.steps[i]);
          }
        }
      }
    }
  });
}

TEST_CASE("A single code is what the loop makes of it, at every bound") {
  for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
    const uint64_t top = uint64_t{1} << (8 * unit - 1);
    for (const uint64_t step : {uint64_t{1}, Mask(unit), top, top - 1, top + 1, uint64_t{2}, Mask(unit) - 1}) {
      CHECK(CodeOfStep(step, unit) == CodeByCases(step, unit));
      CHECK(StepOfCode(CodeOfStep(step, unit), unit) == step);
    }
    CHECK(StepOfCode(Mask(unit) - 1, unit) == top);
  }
  CHECK(CodeOfStep(0xffff, 2) == 0);
  CHECK(CodeOfStep(1, 2) == 1);
}

TEST_CASE("Positions past 32 bits are seen in the sum") {
  std::vector<uint32_t> gaps(3, 0xffff'ffff);
  CHECK(SumGaps(gaps.data(), gaps.size()) == uint64_t{3} << 32);
}

TEST_CASE("Escapes are found in either half, wherever they are") {
  std::mt19937 random(3);
  for (const size_t count : {0, 1, 7, 8, 9, 64, 101}) {
    std::vector<uint8_t> controls(count);
    for (uint8_t& control : controls)
      control = static_cast<uint8_t>(random() % 3 == 0 ? random() | 0xf0 : random() | 0x0e);
    controls.shrink_to_fit();
    for (const uint32_t shift : {0u, 4u}) {
      std::vector<uint32_t> expected;
      for (uint32_t i = 0; i < count; ++i) {
        if ((controls[i] >> shift & 15) == 15) expected.push_back(i);
      }
      std::vector<uint32_t> found(count);
      found.resize(FindEscapes(controls.data(), count, shift, found.data()));
      CHECK(found == expected);
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels

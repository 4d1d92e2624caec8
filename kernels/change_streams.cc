#include "kernels/change_streams.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/unit.h"

// Everything between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE is compiled once for each instruction set. The loops
// are plain and without branches, so that the compiler turns them into the vectors of each: all of a block's changes
// fit the first cache, where some twenty instructions for sixteen changes are all that there is to gain.
//
// All files that dispatch ask for the same targets: what Highway chooses from is inline code, one for the program.
#define HWY_WANT_AVX3_DL 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/change_streams.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels {
namespace HWY_NAMESPACE {

size_t SplitGaps(const uint32_t* HWY_RESTRICT positions, size_t count, uint32_t gap_bits, uint32_t* HWY_RESTRICT gaps,
                 uint8_t* HWY_RESTRICT controls) {
  if (count == 0) return 0;
  gaps[0] = positions[0];
  for (size_t i = 1; i < count; ++i) gaps[i] = positions[i] - positions[i - 1] - 1;
  uint32_t escaped = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t rest = HWY_MIN(gaps[i] >> gap_bits, kEscape);
    escaped += rest == kEscape;
    controls[i] = static_cast<uint8_t>(rest);
  }
  return escaped;
}

template <typename T>
size_t SplitStepsOf(const uint64_t* HWY_RESTRICT steps, size_t count, uint32_t step_bits, uint64_t* HWY_RESTRICT codes,
                    uint8_t* HWY_RESTRICT controls) {
  using Signed = std::make_signed_t<T>;
  constexpr int kTop = 8 * sizeof(T) - 1;
  uint32_t escaped = 0;
  for (size_t i = 0; i < count; ++i) {
    const T step = static_cast<T>(steps[i]);
    const T sign = static_cast<T>(static_cast<Signed>(step) >> kTop);
    const T code = static_cast<T>(static_cast<T>(static_cast<T>(step << 1) ^ sign) - 1);
    const T rest = HWY_MIN(static_cast<T>(code >> step_bits), static_cast<T>(kEscape));
    escaped += rest == kEscape;
    codes[i] = code;
    controls[i] = static_cast<uint8_t>((controls[i] & 0x0f) | rest << 4);
  }
  return escaped;
}

void JoinGaps(const uint8_t* HWY_RESTRICT controls, size_t count, uint32_t gap_bits, uint32_t* HWY_RESTRICT gaps) {
  for (size_t i = 0; i < count; ++i) gaps[i] |= static_cast<uint32_t>(controls[i] & 0x0f) << gap_bits;
}

template <typename T>
T StepOf(T code) {
  const T zigzag = static_cast<T>(code + 1);
  return static_cast<T>(static_cast<T>(zigzag >> 1) ^ static_cast<T>(-static_cast<T>(zigzag & 1)));
}

template <typename T>
void JoinStepsOf(const uint8_t* HWY_RESTRICT controls, size_t count, uint32_t step_bits, uint64_t* HWY_RESTRICT steps) {
  if (step_bits == 0) {
    for (size_t i = 0; i < count; ++i) steps[i] = StepOf(static_cast<T>(controls[i] >> 4));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    const T rest = static_cast<T>(static_cast<T>(controls[i] >> 4) << step_bits);
    steps[i] = StepOf(static_cast<T>(rest | static_cast<T>(steps[i])));
  }
}

size_t SplitSteps(const uint64_t* steps, size_t count, uint32_t unit, uint32_t step_bits, uint64_t* codes,
                  uint8_t* controls) {
  return WithUnit(unit,
                  [&](auto one) { return SplitStepsOf<decltype(one)>(steps, count, step_bits, codes, controls); });
}

void JoinSteps(const uint8_t* controls, size_t count, uint32_t unit, uint32_t step_bits, uint64_t* steps) {
  return WithUnit(unit, [&](auto one) { return JoinStepsOf<decltype(one)>(controls, count, step_bits, steps); });
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {

HWY_EXPORT(SplitGaps);
HWY_EXPORT(SplitSteps);
HWY_EXPORT(JoinGaps);
HWY_EXPORT(JoinSteps);

size_t SplitGaps(const uint32_t* positions, size_t count, uint32_t gap_bits, uint32_t* gaps, uint8_t* controls) {
  return HWY_DYNAMIC_DISPATCH(SplitGaps)(positions, count, gap_bits, gaps, controls);
}

size_t SplitSteps(const uint64_t* steps, size_t count, uint32_t unit, uint32_t step_bits, uint64_t* codes,
                  uint8_t* controls) {
  return HWY_DYNAMIC_DISPATCH(SplitSteps)(steps, count, unit, step_bits, codes, controls);
}

void JoinGaps(const uint8_t* controls, size_t count, uint32_t gap_bits, uint32_t* gaps) {
  HWY_DYNAMIC_DISPATCH(JoinGaps)(controls, count, gap_bits, gaps);
}

void JoinSteps(const uint8_t* controls, size_t count, uint32_t unit, uint32_t step_bits, uint64_t* steps) {
  HWY_DYNAMIC_DISPATCH(JoinSteps)(controls, count, unit, step_bits, steps);
}

uint64_t CodeOfStep(uint64_t step, uint32_t unit) {
  const uint32_t spare = 64 - 8 * unit;
  const uint64_t sign = static_cast<uint64_t>(static_cast<int64_t>(step << spare) >> 63);
  return ((((step << 1) ^ sign) << spare) >> spare) - 1;
}

uint64_t StepOfCode(uint64_t code, uint32_t unit) {
  const uint32_t spare = 64 - 8 * unit;
  const uint64_t zigzag = code + 1;
  return ((zigzag >> 1 ^ (0 - (zigzag & 1))) << spare) >> spare;
}

// One addition after the other, and nothing slower than that: the sum is ready before the vectors of a parallel one
// would be put together.
uint64_t SumGaps(uint32_t* gaps, size_t count) {
  uint64_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    next += gaps[i];
    gaps[i] = static_cast<uint32_t>(next);
    ++next;
  }
  return next;
}

// Escapes are rare: eight control bytes are asked at once whether one of them is one.
size_t FindEscapes(const uint8_t* controls, size_t count, uint32_t shift, uint32_t* indices) {
  constexpr uint64_t kHalves = 0x0f0f'0f0f'0f0f'0f0f;
  constexpr uint64_t kOnes = 0x0101'0101'0101'0101;
  size_t found = 0;
  for (size_t at = 0; at < count; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, controls + at, std::min<size_t>(8, count - at));
    // Only 15 + 1 reaches the fifth bit.
    uint64_t escapes = ((word >> shift & kHalves) + kOnes) & (kOnes << 4);
    for (; escapes != 0; escapes &= escapes - 1) {
      indices[found++] = static_cast<uint32_t>(at) + static_cast<uint32_t>(std::countr_zero(escapes)) / 8;
    }
  }
  return found;
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE

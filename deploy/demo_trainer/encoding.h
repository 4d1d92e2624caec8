// How an fp32 master weight is published: as bf16, f16 or f32, rounded to nearest, ties to even, as PyTorch's .to()
// does. Each encoding is a type that the Adam kernel is instantiated with; all of it is branch-free so that it
// vectorises.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep::demo {

inline constexpr uint32_t kF32Infinity = 0x7f800000u;
inline constexpr uint32_t kF32Magnitude = 0x7fffffffu;

struct BF16 {
  using Bits = uint16_t;

  [[gnu::always_inline]] static Bits Encode(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40u;  // rounding could carry a NaN into infinity
    return static_cast<Bits>((bits & kF32Magnitude) > kF32Infinity ? quiet_nan : rounded);
  }
  static float Decode(Bits bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

struct F16 {
  using Bits = uint16_t;

  [[gnu::always_inline]] static Bits Encode(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & kF32Magnitude;
    // Normal numbers: rebias the exponent, round the 13 bits that go. A carry runs into the exponent, up to infinity.
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Subnormal ones: adding 0.5 lets the floating-point unit shift and round them to multiples of 2^-24.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
    uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
    half = magnitude >= (143u << 23) ? 0x7c00u : half;  // 2^16 and above; 65520 and above round there by carry
    half = magnitude > kF32Infinity ? 0x7e00u | ((magnitude >> 13) & 0x1ffu) : half;
    return static_cast<Bits>(((bits >> 16) & 0x8000u) | half);
  }
  static float Decode(Bits bits) {
    const uint32_t sign = (bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0) {
      const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
      return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
    }
    if (exponent == 31) return std::bit_cast<float>(sign | kF32Infinity | (fraction << 13));
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  }
};

struct F32 {
  using Bits = uint32_t;

  [[gnu::always_inline]] static Bits Encode(float value) { return std::bit_cast<uint32_t>(value); }
  static float Decode(Bits bits) { return std::bit_cast<float>(bits); }
};

}  // namespace lockstep::demo

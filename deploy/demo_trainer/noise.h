// Random numbers that are a function of where they are used: hash(seed, index). Nothing is stored, threads share
// nothing, the compiler turns the loops into SIMD, and the same seed gives the same training run on every machine.
//
// "Normal" here is a sum of four uniforms, scaled to mean 0 and variance 1: it has no tail beyond 3.46, which makes
// no difference to a demo trainer.
#pragma once

#include <cstdint>

namespace lockstep::demo {

// Every output bit depends on every input bit (a 32-bit xor-shift-multiply finalizer).
[[gnu::always_inline]] inline uint32_t Mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0xd35a2d97u;
  return x ^ (x >> 15);
}

[[gnu::always_inline]] inline uint32_t HashAt(uint32_t seed, uint32_t index) {
  return Mix((index * 0x9e3779b1u) ^ seed);
}

// From the four bytes of one hash: quick, and coarse (steps of 0.007). For gradients.
[[gnu::always_inline]] inline float QuickNormal(uint32_t seed, uint32_t index) {
  const uint32_t hash = HashAt(seed, index);
  const uint32_t pairs = (hash & 0x00ff00ffu) + ((hash >> 8) & 0x00ff00ffu);
  const auto sum = static_cast<int32_t>((pairs & 0xffffu) + (pairs >> 16));
  constexpr float kScale = 1.0f / 147.79941f;  // sqrt(4 * (256^2 - 1) / 12)
  return static_cast<float>(sum - 510) * kScale;
}

// From four hashes: fine to the last bit of a float. For weights, whose low bits decide when they flip.
[[gnu::always_inline]] inline float FineNormal(uint32_t seed, uint32_t index) {
  int32_t sum = 0;
  for (uint32_t draw = 0; draw < 4; ++draw) sum += static_cast<int32_t>(HashAt(seed + draw * 0x632be5abu, index) >> 8);
  constexpr float kScale = 1.0f / 9686330.0f;  // sqrt(4 / 12) * 2^24
  return static_cast<float>(sum - (1 << 25)) * kScale;
}

// In [0, 1).
[[gnu::always_inline]] inline float Uniform(uint32_t seed, uint32_t index) {
  return static_cast<float>(static_cast<int32_t>(HashAt(seed, index) >> 8)) * (1.0f / (1 << 24));
}

}  // namespace lockstep::demo

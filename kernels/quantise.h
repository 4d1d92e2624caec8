// Quantise: matrices of F32, F16 or BF16 to the FP8 (E4M3) and FP4 (E2M1) of quantised checkpoints, with their scales.
// common/derive uses it; the formats are those of its FORMAT.md.
//
// The results are functions of the source's bits: the same on every machine and with every instruction set. Values are
// rounded to nearest, ties to even. NaN is always 0x7f in E4M3, 0 in E2M1, and 0x7fc00000 in an F32 scale. Rows lie
// back to back; pointers need no alignment beyond that of their elements.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels {

enum class FloatType : uint8_t { kF32, kF16, kBF16 };

struct FloatRows {
  const void* data = nullptr;  // `rows` × `columns` elements
  FloatType type = FloatType::kBF16;
  size_t rows = 0;
  size_t columns = 0;
};

inline constexpr size_t kFp8BlockSide = 128;
inline constexpr size_t kMxfp8Group = 32;
inline constexpr size_t kNvfp4Group = 16;

// How the scale of a block of FP8 is made.
enum class BlockScale : uint8_t {
  kExact,       // absolute maximum / 448
  kPowerOfTwo,  // that, rounded up to a power of two
};

// The largest |x|; NaN when any element is NaN, 0 for no elements.
float AbsMax(const FloatRows& rows);

// Blocks of 128 × 128, smaller ones at the ends. `values`: rows × columns E4M3; `scales`: ⌈rows/128⌉ × ⌈columns/128⌉,
// each for value × scale ≈ element.
void QuantiseFp8Blocks(const FloatRows& rows, BlockScale scale, uint8_t* values, float* scales);
// One scale for each row.
void QuantiseFp8Rows(const FloatRows& rows, uint8_t* values, float* scales);
// The scale of a whole tensor, from its AbsMax(), and E4M3 of it.
float Fp8Scale(float abs_max);
void QuantiseFp8(const FloatRows& rows, float scale, uint8_t* values);
// Groups of 32 elements of a row, each with an E8M0 scale. REQUIRES columns to be a multiple of 32.
void QuantiseMxfp8(const FloatRows& rows, uint8_t* values, uint8_t* scales);
// Groups of 16 elements of a row, each with an E4M3 scale, which counts in units of `global`. `values` has two E2M1 in
// a byte, the first in the low half. REQUIRES columns to be a multiple of 16.
float Nvfp4GlobalScale(float abs_max);
void QuantiseNvfp4(const FloatRows& rows, float global, uint8_t* values, uint8_t* scales);

}  // namespace lockstep::kernels

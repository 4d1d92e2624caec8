// The loops between a block's changes and the streams that they are coded as (common/payload/FORMAT.md, "Blocks").
//
// A change is two numbers: its gap, the unchanged units since the change before (or the start), and its code, zigzag of
// the signed step minus one (+1 is 1, −1 is 0, +2 is 3, −2 is 2). The low bits of a number go to a stream of their own;
// what is left of the gap and of the code, at most kEscape each, share one byte, the control byte: gap below, code
// above. If what is left does not fit, the control byte says kEscape, and the caller writes the rest elsewhere.
//
// Plain pointers, no SIMD types: one implementation per target behind one dispatch point, all bit-exact. `unit` is 1,
// 2, 4 or 8 bytes. Pointers need no alignment beyond their type's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels {

inline constexpr uint32_t kEscape = 15;

// Gaps of rising `positions`, and control bytes with their gap half filled; the code half is zero. Answers how many are
// escaped.
size_t SplitGaps(const uint32_t* positions, size_t count, uint32_t gap_bits, uint32_t* gaps, uint8_t* controls);

// Codes of `steps`, and the code half of the control bytes, replacing what is there. Answers how many are escaped.
// REQUIRES steps non-zero and below 2^(8·unit).
size_t SplitSteps(const uint64_t* steps, size_t count, uint32_t unit, uint32_t step_bits, uint64_t* codes,
                  uint8_t* controls);

// `gaps` holds the low bits of each gap; puts those of the control bytes on top. An escaped gap comes out with kEscape
// there.
void JoinGaps(const uint8_t* controls, size_t count, uint32_t gap_bits, uint32_t* gaps);

// `steps` holds the low bits of each code; replaces them by the steps. An escaped one is replaced as if its rest were
// kEscape. REQUIRES step_bits + 5 <= 8·unit: then no control byte makes a zero step, and `step_bits` == 0 reads nothing
// of `steps`.
void JoinSteps(const uint8_t* controls, size_t count, uint32_t unit, uint32_t step_bits, uint64_t* steps);

// The code of one step, and back, for escaped changes. REQUIRES code < 2^(8·unit) − 1, step as in SplitSteps.
uint64_t CodeOfStep(uint64_t step, uint32_t unit);
uint64_t StepOfCode(uint64_t code, uint32_t unit);

// Replaces gaps by positions. Answers one past the last position, at full width, so that the caller can refuse
// positions outside its block, which come out wrapped.
uint64_t SumGaps(uint32_t* gaps, size_t count);

// Finds the control bytes with kEscape in their gap half (`shift` 0) or code half (`shift` 4). Writes their indices to
// `indices`, rising, and answers how many. REQUIRES room for `count`.
size_t FindEscapes(const uint8_t* controls, size_t count, uint32_t shift, uint32_t* indices);

}  // namespace lockstep::kernels

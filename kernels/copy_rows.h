// Copies of rows between pitched memories: what an export or import plan is run with.
//
// Plain pointers, no SIMD types: one implementation per target behind one dispatch point, each bit-exact with the
// scalar one. Pointers and pitches need no alignment; source and target must not overlap. Row r is at dst + r *
// dst_pitch and src + r * src_pitch; pitches are bytes and mean nothing when there is one row.
//
// Large copies go past the caches: what is written is a slot, a bucket or a parameter that is not read soon. All
// stores are visible to other threads and devices as plain ones are once a call has returned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels {

void CopyRows(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows, uint64_t row_bytes);

// F32 to BF16, rounded to nearest, ties to even; every NaN becomes 0x7FC0, on every machine (PyTorch's differs with
// the instruction set).
void CopyRowsF32ToBF16(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                       uint64_t row_elements);

// BF16 to F32, exactly.
void CopyRowsBF16ToF32(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                       uint64_t row_elements);

}  // namespace lockstep::kernels

// kernels/copy_rows.h on a GPU: rows as they are, F32 to BF16 and back, bit for bit as the CPU does it.
//
// Memory is the current device's. Row r is at dst + r * dst_pitch and src + r * src_pitch; pointers and pitches need no
// alignment, and pitches mean nothing when there is one row. The work is in place once `stream`, of the current device,
// has come to it. Answers what starting it answered.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::kernels::cuda {

// Brings what is started here into the current device. The first start does, otherwise, and may wait for whatever runs
// there.
cudaError_t LoadRounding();

// To nearest, ties to even; every NaN becomes 0x7FC0.
cudaError_t StartRowsF32ToBF16(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                               uint64_t row_elements, cudaStream_t stream);

cudaError_t StartRowsBF16ToF32(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                               uint64_t row_elements, cudaStream_t stream);

// For rows so narrow that a copy of CUDA's would move them one by one.
cudaError_t StartNarrowRows(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                            uint64_t row_bytes, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda

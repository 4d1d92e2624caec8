// What is written into a tensor of a device out of packed memory of that device: kernels/scatter.h and
// kernels/copy_rows.h there, bit-exact with them.
//
// Places need no alignment. The work is done once `stream`, of the current device, has come to it. Answers what
// starting it answered.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::kernels::cuda {

// Units from the `first` one on, up to the next run's, go to byte base + their offset.
struct UnitRun {
  uint64_t base = 0;
  uint64_t first = 0;
};

// `count` units of `unit` bytes (1, 2, 4 or 8): the i-th goes to dst + base of its run + offsets[i]. All pointers are
// the device's; `values` is aligned to `unit`. `run_count` runs by rising `first`, that of runs[0] being 0.
cudaError_t StartScatter(void* dst, uint32_t unit, const UnitRun* runs, uint32_t run_count, const uint32_t* offsets,
                         const void* values, uint64_t count, cudaStream_t stream);

// For rows so narrow that a copy of CUDA's would move them one by one.
cudaError_t StartCopyRows(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                          uint64_t row_bytes, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda

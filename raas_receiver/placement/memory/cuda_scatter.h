// kernels/scatter.h for a GPU's memory, bit-exact with it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::placement {

// Starts, on `stream`: unit i of `values` goes to dst + offsets[i]. All pointers are the device's; `values` is aligned
// to `unit` (1, 2, 4 or 8), places need no alignment. `count` may be 0.
cudaError_t StartScatter(void* dst, uint32_t unit, const uint32_t* offsets, const void* values, uint64_t count,
                         cudaStream_t stream);

}  // namespace lockstep::placement

// What CUDA's answers mean to a trainer. Only in builds with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "common/base/status.h"

namespace lockstep::gpu {

// OK, or `what` with CUDA's name and sentence: kResourceExhausted where memory is missing, else kIo.
Status CudaStatus(cudaError_t error, std::string_view what);

// OK, or why this process reaches no GPU, and what to do: kNotFound where there is no driver or no GPU, kUnavailable
// where the driver is too old or does not start.
Status GpuTrouble();

}  // namespace lockstep::gpu

// What Lockstep uses of the CUDA driver's interface: see cuda_runtime_api.h beside it.
#pragma once

typedef int CUdevice;

typedef enum cudaError_enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
} CUresult;

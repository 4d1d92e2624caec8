// What Lockstep uses of the CUDA driver's interface: see cuda_runtime_api.h beside it.
#pragma once

#include <stddef.h>

typedef unsigned long long CUdeviceptr;

typedef enum cudaError_enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_NOT_FOUND = 500,
} CUresult;

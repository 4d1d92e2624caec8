// Starts kernels without barriers between threads. One source makes a GPU's kernel and the host's.
//
// nvcc compiles them for a GPU. For tests, the host's compiler makes functions of them, and the stand-in of the CUDA
// runtime runs these for one thread after the other, in the order of the stream. That tests their arithmetic and their
// bounds, but not how a GPU's threads see each other's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#ifndef __CUDACC__
#include "tests/cuda/stand_in.h"

// CUDA's own headers, where they are there, mean something to nvcc alone.
#undef __global__
#undef __device__
#define __global__
#define __device__
#endif

namespace lockstep::kernels::cuda {

constexpr uint64_t kBlockThreads = 256;

#ifdef __CUDACC__

// Which of all threads this is. There may be more than were asked for.
__device__ inline uint64_t ThreadIndex() {
  return uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
}

// Starts `kernel(arguments...)` on at least `threads` threads of the current device, in its `stream`. The error is the
// launch's own, not one that was left over.
template <typename... Parameters>
cudaError_t Launch(const char*, void (*kernel)(Parameters...), uint64_t threads, cudaStream_t stream,
                   Parameters... arguments) {
  if (threads == 0) return cudaSuccess;
  void* pointers[] = {&arguments...};
  const dim3 blocks(static_cast<unsigned>((threads + kBlockThreads - 1) / kBlockThreads));
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks, dim3(kBlockThreads), pointers, 0, stream);
}

// Brings kernels into the current device, which their first start would do otherwise, and may wait there for whatever
// runs.
template <typename... Kernels>
cudaError_t LoadKernels(Kernels... kernels) {
  cudaError_t error = cudaSuccess;
  cudaFuncAttributes attributes;
  const auto load = [&](const void* kernel) {
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  };
  (load(reinterpret_cast<const void*>(kernels)), ...);
  return error;
}

#else

inline thread_local uint64_t thread_index = 0;

inline uint64_t ThreadIndex() {
  return thread_index;
}

template <typename... Parameters>
cudaError_t Launch(const char* name, void (*kernel)(Parameters...), uint64_t threads, cudaStream_t stream,
                   Parameters... arguments) {
  if (threads == 0) return cudaSuccess;
  const uint64_t all = (threads + kBlockThreads - 1) / kBlockThreads * kBlockThreads;
  return lockstep::cuda::Launch(stream, name, [=] {
    for (thread_index = 0; thread_index < all; ++thread_index) kernel(arguments...);
  });
}

template <typename... Kernels>
cudaError_t LoadKernels(Kernels...) {
  return cudaSuccess;
}

#endif

}  // namespace lockstep::kernels::cuda

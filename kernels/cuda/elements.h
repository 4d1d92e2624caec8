// Elements in the memory of a device, as the kernels read and write them.
#pragma once

#include "kernels/cuda/launch.h"

namespace lockstep::kernels::cuda {

// `from` needs no alignment.
template <typename T>
__device__ T Load(const char* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(T) == 0) return *reinterpret_cast<const T*>(from);
  T value = 0;
  for (int byte = sizeof(T) - 1; byte >= 0; --byte) {
    value = static_cast<T>(value << 8 | static_cast<unsigned char>(from[byte]));
  }
  return value;
}

template <typename T>
__device__ void Store(char* to, T value) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(T) == 0) {
    *reinterpret_cast<T*>(to) = value;
    return;
  }
  for (int byte = 0; byte < static_cast<int>(sizeof(T)); ++byte) to[byte] = static_cast<char>(value >> (8 * byte));
}

}  // namespace lockstep::kernels::cuda

// Elements in the memory of a device, as the kernels read, round and write them.
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

// To nearest, ties to even; every NaN becomes 0x7FC0.
__device__ inline uint16_t BF16OfF32(uint32_t bits) {
  if ((bits & 0x7fff'ffff) > 0x7f80'0000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace lockstep::kernels::cuda

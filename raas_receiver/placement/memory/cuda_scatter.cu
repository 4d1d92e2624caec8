#include "raas_receiver/placement/memory/cuda_scatter.h"

namespace lockstep::placement {
namespace {

constexpr uint64_t kThreads = 256;

template <typename T>
__global__ void Scatter(char* dst, const uint32_t* offsets, const T* values, uint64_t count) {
  const uint64_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  char* const to = dst + offsets[i];
  const T value = values[i];
  if (reinterpret_cast<uintptr_t>(to) % sizeof(T) == 0) {
    *reinterpret_cast<T*>(to) = value;
    return;
  }
  const char* const bytes = reinterpret_cast<const char*>(&value);
  for (int byte = 0; byte < static_cast<int>(sizeof(T)); ++byte) to[byte] = bytes[byte];
}

template <typename T>
void Launch(void* dst, const uint32_t* offsets, const void* values, uint64_t count, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  Scatter<T><<<blocks, kThreads, 0, stream>>>(static_cast<char*>(dst), offsets, static_cast<const T*>(values), count);
}

}  // namespace

cudaError_t StartScatter(void* dst, uint32_t unit, const uint32_t* offsets, const void* values, uint64_t count,
                         cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  switch (unit) {
    case 1:
      Launch<uint8_t>(dst, offsets, values, count, stream);
      break;
    case 2:
      Launch<uint16_t>(dst, offsets, values, count, stream);
      break;
    case 4:
      Launch<uint32_t>(dst, offsets, values, count, stream);
      break;
    default:
      Launch<uint64_t>(dst, offsets, values, count, stream);
  }
  return cudaGetLastError();
}

}  // namespace lockstep::placement

#include "kernels/cuda/elements.h"
#include "kernels/cuda/sum.h"

namespace lockstep::kernels::cuda {
namespace {

// One to one for each index.
__device__ inline uint64_t Mix(uint64_t word, uint64_t index) {
  uint64_t x = word ^ ((index + 1) * 0x9e37'79b9'7f4a'7c15);
  for (int round = 0; round < 2; ++round) x = (x ^ (x >> 32)) * 0xd6e8'feb8'6659'fd93;
  return x ^ (x >> 32);
}

// Neighbouring threads take neighbouring words.
__global__ void Sum(const char* data, uint64_t bytes, uint64_t* parts) {
  const uint64_t part = ThreadIndex();
  if (part >= kSumParts) return;
  uint64_t sum = 0;
  uint64_t i = part;
  for (; 8 * i + 8 <= bytes; i += kSumParts) sum += Mix(Load<uint64_t>(data + 8 * i), i);
  if (8 * i < bytes) {
    uint64_t last = 0;
    for (uint64_t at = bytes; at-- > 8 * i;) last = last << 8 | static_cast<unsigned char>(data[at]);
    sum += Mix(last, i);
  }
  parts[part] = sum;
}

}  // namespace

cudaError_t LoadSum() {
  return LoadKernels(Sum);
}

cudaError_t StartSum(const void* data, uint64_t bytes, uint64_t* parts, cudaStream_t stream) {
  return Launch("Sum", Sum, kSumParts, stream, static_cast<const char*>(data), bytes, parts);
}

}  // namespace lockstep::kernels::cuda

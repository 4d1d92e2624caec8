// A sum over bytes in a GPU's memory that tells whether they were changed on the way to another one: any flipped bit
// changes it, so do words that changed places. No defence against an adversary.
//
// Of the little-endian 64-bit words of the bytes, the last one filled up with zeros: sum of word[i] * key(i) mod 2^64,
// where key(i) = ((k ^ (k >> 32)) * 0xD6E8FEB86659FD93) | 1 and k = (i + 1) * 0x9E3779B97F4A7C15 mod 2^64.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::kernels::cuda {

inline constexpr uint64_t kSumParts = 65536;

// Writes `kSumParts` words to `parts`, which add up to the sum. All memory is the current device's; `data` needs no
// alignment. In place once `stream`, of the current device, has come to it. Answers what starting it answered.
cudaError_t StartSum(const void* data, uint64_t bytes, uint64_t* parts, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda

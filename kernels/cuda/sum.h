// A sum over bytes in a GPU's memory that tells whether they were changed on the way to another one: any change within
// one word changes it, others, words that changed places among them, all but one in 2^64. No defence against an
// adversary.
//
// Of the little-endian 64-bit words of the bytes, the last one filled up with zeros, mod 2^64: the sum of
// mix(word[i] ^ ((i + 1) * 0x9E3779B97F4A7C15)), where mix(x) is, twice, x ^= x >> 32 and x *= 0xD6E8FEB86659FD93, and
// x ^= x >> 32 once more.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::kernels::cuda {

inline constexpr uint64_t kSumParts = 65536;

// Brings what is started here into the current device. The first start does, otherwise, and may wait for whatever runs
// there.
cudaError_t LoadSum();

// Writes `kSumParts` words to `parts`, which add up to the sum. All memory is the current device's; `data` needs no
// alignment. In place once `stream`, of the current device, has come to it. Answers what starting it answered.
cudaError_t StartSum(const void* data, uint64_t bytes, uint64_t* parts, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda

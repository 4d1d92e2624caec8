// Which units of a tensor are no longer what a shadow of it says, found on the device that both are on.
//
// Two passes, with the sum of the first one's counts between them: StartCount tells how many units changed in each
// stripe of kStripeUnits, StartTake writes them out and brings the shadow up to date. No thread waits for another.
//
// The work is done once `stream`, of the current device, has come to it. Answers what starting it answered.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::kernels::cuda {

constexpr uint64_t kStripeUnits = 64;

constexpr uint64_t StripesOf(uint64_t units) {
  return (units + kStripeUnits - 1) / kStripeUnits;
}

// All in the current device's memory, aligned to its elements.
struct Shadowed {
  const void* tensor = nullptr;  // `units` units, side by side
  void* shadow = nullptr;        // as many
  uint64_t units = 0;            // at most 2^32
  uint32_t unit = 2;             // bytes: 1, 2, 4 or 8
  bool rounds = false;  // the tensor is F32 and counts as BF16, to nearest, ties to even, every NaN 0x7FC0; unit is 2
};

// counts[s]: how many units of stripe s differ.
cudaError_t StartCount(const Shadowed& shadowed, uint32_t* counts, cudaStream_t stream);

// `firsts` has one entry more than there are stripes: stripe s writes its changed units to [firsts[s], firsts[s + 1])
// of `positions` (in units, rising) and `values`, and into the shadow. A stripe with more changes than that (the tensor
// has changed since it was counted) leaves the rest for the next time: nothing is ever written past its end.
cudaError_t StartTake(const Shadowed& shadowed, const uint64_t* firsts, uint32_t* positions, void* values,
                      cudaStream_t stream);

}  // namespace lockstep::kernels::cuda

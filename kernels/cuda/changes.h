// Which units of a rank's share are no longer what they were, found on the device that has them.
//
// A share is kept packed: its pieces, each some rows of a tensor, one behind the other, in units of two bytes. Of that
// there are a shadow (the share as it was compared last) and marks (a bit for each unit: whether that comparison found
// it changed). Every pass goes over a stretch of the packed share:
//
//   StartCompare   piece by piece: tensor -> shadow, marks; and `either`: marked now, or the time before
//   StartCount     how many units `either` has, by region
//   StartTake      these units, with the sum of the counts before each region, which the caller makes in between
//
// The tensor is read once, by the first; what the others see is the shadow. No thread waits for another.
//
// Memory is the current device's. The work is done once `stream`, of the current device, has come to it. Answers what
// starting it answered.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/packed.h"

namespace lockstep::kernels::cuda {

// Rows of a tensor, and where they are kept packed.
struct Piece {
  const void* rows = nullptr;  // row r at rows + r * pitch; no alignment is needed
  uint64_t pitch = 0;          // in bytes; means nothing where there is one row
  uint64_t row_units = 0;
  uint64_t units = 0;         // of all rows
  bool rounds = false;        // units are F32 in the tensor, and kept as BF16, as round.h has it
  void* shadow = nullptr;     // GroupsOf(units) groups of units, aligned to 16 bytes
  uint8_t* marks = nullptr;   // a byte for each group; bits behind the last unit are 0
  uint8_t* either = nullptr;  // the same
};

// Brings what is started here into the current device. The first start does, otherwise, and may wait for whatever runs
// there.
cudaError_t LoadChanges();

cudaError_t StartCompare(const Piece& piece, cudaStream_t stream);

// Of the `groups` groups of `either`: how many units each region has, and each stripe's region before the stripe.
cudaError_t StartCount(const uint8_t* either, uint64_t groups, uint32_t* region_counts, uint32_t* stripe_firsts,
                       cudaStream_t stream);

// The units of `either`, by rising places: region r's from changes[region_firsts[r]] on.
cudaError_t StartTake(const uint8_t* either, uint64_t groups, const void* shadow, const uint32_t* region_firsts,
                      const uint32_t* stripe_firsts, Change* changes, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda

// Bringing a block forward: adds the steps of its changes, and hashes what comes out.
//
// Plain pointers, no SIMD types: one implementation per instruction set behind one dispatch point, each bit-exact with
// adding and hashing one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::kernels {

// One delta's changes of a block: positions in units, rising, and as many steps.
struct BlockChanges {
  const uint32_t* positions = nullptr;
  const uint64_t* steps = nullptr;
  size_t count = 0;
};

// Adds what `deltas` say, all of them in one pass over the block, and answers Hash64 of the outcome. Uses `deltas` up:
// they have no changes left. `unit` is 1, 2, 4 or 8 bytes, `bytes` a multiple of it. REQUIRES positions inside the
// block.
uint64_t AddStepsAndHash(void* block, size_t bytes, uint32_t unit, std::span<BlockChanges> deltas);

// Starts to fetch the front of a block, for a caller that has something else to do before AddStepsAndHash.
void FetchFront(const void* block, size_t bytes);

}  // namespace lockstep::kernels

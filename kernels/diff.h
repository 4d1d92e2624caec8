// Compare and hash: the pass over a block's elements that everything else on the agent waits for.
//
// Plain pointers, no SIMD types: one implementation per instruction set behind one dispatch point, each bit-exact with
// the scalar one. `unit` is 1, 2, 4 or 8 bytes; `bytes` is a multiple of it; pointers need no alignment. Steps are new
// − old mod 2^(8·unit).
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels {

struct Diff {
  size_t changes = 0;
  uint64_t hash = 0;  // Hash64 of the target's bytes
};

// Called with each stretch of changes as soon as it is found, in order: [first, last) of them all. The bytes of both
// images there are in the nearest caches still, which they are not after the whole block.
struct FoundChanges {
  void (*take)(void* context, size_t first, size_t last) = nullptr;  // null: nobody is called
  void* context = nullptr;
};

// Writes the positions (in units, rising) and steps of the units that differ, and returns how many, with the target's
// hash: one pass, since both wait for the same bytes. REQUIRES room for bytes / unit of each; bytes <= 2^32.
Diff FindChangesAndHash(const void* base, const void* target, size_t bytes, uint32_t unit, uint32_t* positions,
                        uint64_t* steps, const FoundChanges& found = {});

}  // namespace lockstep::kernels

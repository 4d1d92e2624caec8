// Collects single units from rising places: what a delta changes of an engine's memory.
//
// Plain pointers, no SIMD types; every implementation is bit-exact with the scalar one. `unit` is 1, 2, 4 or 8 bytes;
// pointers and offsets need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels {

// Unit i of `values` is the one at src + offsets[i]. Offsets are bytes.
void GatherUnits(const void* src, uint32_t unit, const uint32_t* offsets, void* values, size_t count);

}  // namespace lockstep::kernels

// The oracle: the plainest loops of diff.h, apply.h and gather.h. Tests hold every other implementation against it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels::scalar {

size_t FindChanges(const void* base, const void* target, size_t bytes, uint32_t unit, uint32_t* positions,
                   uint64_t* steps);
void AddSteps(void* block, uint32_t unit, const uint32_t* positions, const uint64_t* steps, size_t count);
void GatherUnits(const void* src, uint32_t unit, const uint32_t* offsets, void* values, size_t count);

}  // namespace lockstep::kernels::scalar

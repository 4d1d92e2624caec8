// The loops that hash long inputs, one for each instruction set that has its own: of no interest but to Hash64 and to
// its test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

struct LongHashTarget {
  const char* name;
  bool supported;                                    // by this machine
  uint64_t (*hash)(const void* data, size_t bytes);  // xxh3-64. REQUIRES bytes > kShortHashBytes
};

inline constexpr size_t kShortHashBytes = 240;  // up to here xxh3 works in other ways

// The fastest first; the last one is always supported.
std::span<const LongHashTarget> LongHashTargets();

}  // namespace lockstep

// The floor of every pass over a model: loops that only read memory, with the widest loads that the machine has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::bench {

// A loop with loads of 32 or of 64 bytes, where the machine has such; wider is not always faster.
enum class Loads { kWide32, kWide64 };

// The bitwise or of all words, so that nothing is left out. REQUIRES bytes to be a multiple of 8. Of two memories, both
// are read side by side: two streams for the prefetcher, which measured no slower than one after the other.
uint64_t ReadOne(const std::byte* memory, size_t bytes, Loads loads);
uint64_t ReadBoth(const std::byte* a, const std::byte* b, size_t bytes, Loads loads);

}  // namespace lockstep::bench

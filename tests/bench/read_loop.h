// The floor of every pass over a model: loops that only read memory, with the widest loads that the machine has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::bench {

// The bitwise or of all words, so that nothing is left out. REQUIRES bytes to be a multiple of 8. Of two memories, both
// are read side by side: two streams for the prefetcher, which measured no slower than one after the other.
uint64_t ReadOne(const std::byte* memory, size_t bytes);
uint64_t ReadBoth(const std::byte* a, const std::byte* b, size_t bytes);

}  // namespace lockstep::bench

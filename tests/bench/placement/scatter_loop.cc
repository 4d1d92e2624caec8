// The floor of every update: a loop that writes two bytes to each of its places, and does nothing else.
#include <cstddef>
#include <cstdint>

// Element i of `values` becomes element places[i] of `to`.
extern "C" void lockstep_bench_scatter(uint16_t* to, const uint32_t* places, const uint16_t* values, size_t count) {
  for (size_t i = 0; i < count; ++i) to[places[i]] = values[i];
}

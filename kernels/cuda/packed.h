// How a rank's share is kept packed on a GPU (changes.h), and what comes of it: also for the host's side.
#pragma once

#include <cstdint>

namespace lockstep::kernels::cuda {

constexpr uint64_t kGroupUnits = 8;  // whose bits are one byte, the first one's the lowest
constexpr uint64_t kStripeUnits = 512;
constexpr uint64_t kRegionUnits = uint64_t{1} << 16;

constexpr uint64_t GroupsOf(uint64_t units) {
  return (units + kGroupUnits - 1) / kGroupUnits;
}
constexpr uint64_t StripesOf(uint64_t units) {
  return (units + kStripeUnits - 1) / kStripeUnits;
}
constexpr uint64_t RegionsOf(uint64_t units) {
  return (units + kRegionUnits - 1) / kRegionUnits;
}

// A unit of a region: its place there, and what it is now.
struct Change {
  uint16_t place = 0;
  uint16_t unit = 0;
};
static_assert(sizeof(Change) == 4);

}  // namespace lockstep::kernels::cuda

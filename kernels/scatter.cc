#include "kernels/scatter.h"

#include <cstring>

namespace lockstep::kernels {
namespace {

// Of a size that the compiler knows, so that a unit is one load and one store. The processor has many of these under
// way at once, and the memory's bandwidth is the limit: fetching ahead has gained nothing.
template <size_t kUnit>
void Scatter(char* to, const uint32_t* offsets, const char* values, size_t count) {
  for (size_t i = 0; i < count; ++i) std::memcpy(to + offsets[i], values + i * kUnit, kUnit);
}

template <size_t kUnit>
void Gather(const char* from, const uint32_t* offsets, char* values, size_t count) {
  for (size_t i = 0; i < count; ++i) std::memcpy(values + i * kUnit, from + offsets[i], kUnit);
}

}  // namespace

void ScatterUnits(void* dst, uint32_t unit, const uint32_t* offsets, const void* values, size_t count) {
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(values);
  switch (unit) {
    case 1:
      return Scatter<1>(to, offsets, from, count);
    case 2:
      return Scatter<2>(to, offsets, from, count);
    case 4:
      return Scatter<4>(to, offsets, from, count);
    default:
      return Scatter<8>(to, offsets, from, count);
  }
}

void GatherUnits(const void* src, uint32_t unit, const uint32_t* offsets, void* values, size_t count) {
  const auto* from = static_cast<const char*>(src);
  auto* to = static_cast<char*>(values);
  switch (unit) {
    case 1:
      return Gather<1>(from, offsets, to, count);
    case 2:
      return Gather<2>(from, offsets, to, count);
    case 4:
      return Gather<4>(from, offsets, to, count);
    default:
      return Gather<8>(from, offsets, to, count);
  }
}

}  // namespace lockstep::kernels

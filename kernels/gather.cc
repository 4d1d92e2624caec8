#include "kernels/gather.h"

#include <cstring>

#include "kernels/unit.h"

namespace lockstep::kernels {
namespace {

// Of a size that the compiler knows, so that a unit is one load and one store. The processor has many of these under
// way at once, and the memory's bandwidth is the limit: fetching ahead has gained nothing.
template <size_t kUnit>
void Gather(const char* from, const uint32_t* offsets, char* values, size_t count) {
  for (size_t i = 0; i < count; ++i) std::memcpy(values + i * kUnit, from + offsets[i], kUnit);
}

}  // namespace

void GatherUnits(const void* src, uint32_t unit, const uint32_t* offsets, void* values, size_t count) {
  const auto* from = static_cast<const char*>(src);
  auto* to = static_cast<char*>(values);
  return WithUnit(unit, [&](auto one) { return Gather<sizeof(one)>(from, offsets, to, count); });
}

}  // namespace lockstep::kernels

#include "kernels/scalar.h"

#include <cstring>

#include "kernels/unit.h"

namespace lockstep::kernels::scalar {
namespace {

template <typename T>
size_t Find(const char* base, const char* target, size_t bytes, uint32_t* positions, uint64_t* steps) {
  size_t found = 0;
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    T before, after;
    std::memcpy(&before, base + i * sizeof(T), sizeof(T));
    std::memcpy(&after, target + i * sizeof(T), sizeof(T));
    if (before == after) continue;
    positions[found] = static_cast<uint32_t>(i);
    steps[found++] = static_cast<T>(after - before);
  }
  return found;
}

template <typename T>
void Add(char* block, const uint32_t* positions, const uint64_t* steps, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    char* at = block + size_t{positions[i]} * sizeof(T);
    T value;
    std::memcpy(&value, at, sizeof(T));
    value = static_cast<T>(value + static_cast<T>(steps[i]));
    std::memcpy(at, &value, sizeof(T));
  }
}

}  // namespace

size_t FindChanges(const void* base, const void* target, size_t bytes, uint32_t unit, uint32_t* positions,
                   uint64_t* steps) {
  const auto* a = static_cast<const char*>(base);
  const auto* b = static_cast<const char*>(target);
  return WithUnit(unit, [&](auto one) { return Find<decltype(one)>(a, b, bytes, positions, steps); });
}

void AddSteps(void* block, uint32_t unit, const uint32_t* positions, const uint64_t* steps, size_t count) {
  auto* bytes = static_cast<char*>(block);
  return WithUnit(unit, [&](auto one) { return Add<decltype(one)>(bytes, positions, steps, count); });
}

void GatherUnits(const void* src, uint32_t unit, const uint32_t* offsets, void* values, size_t count) {
  const auto* from = static_cast<const char*>(src);
  auto* to = static_cast<char*>(values);
  for (size_t i = 0; i < count; ++i) std::memcpy(to + i * unit, from + offsets[i], unit);
}

}  // namespace lockstep::kernels::scalar

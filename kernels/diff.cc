#include "kernels/diff.h"

#include <cstring>

#include "kernels/scalar.h"

namespace lockstep::kernels {
namespace {

constexpr size_t kStride = 64;

// A cache line at a time: the compiler turns the eight comparisons into a few vector ones, and most lines of a real
// delta are equal.
bool LineDiffers(const char* a, const char* b) {
  uint64_t x[kStride / 8], y[kStride / 8];
  std::memcpy(x, a, kStride);
  std::memcpy(y, b, kStride);
  uint64_t any = 0;
  for (size_t i = 0; i < kStride / 8; ++i) any |= x[i] ^ y[i];
  return any != 0;
}

}  // namespace

size_t FindChanges(const void* base, const void* target, size_t bytes, uint32_t unit, uint32_t* positions,
                   uint64_t* steps) {
  const auto* a = static_cast<const char*>(base);
  const auto* b = static_cast<const char*>(target);
  size_t found = 0;
  const auto scan = [&](size_t at, size_t length) {
    const size_t before = found;
    found += scalar::FindChanges(a + at, b + at, length, unit, positions + found, steps + found);
    for (size_t i = before; i < found; ++i) positions[i] += static_cast<uint32_t>(at / unit);
  };
  size_t at = 0;
  for (; at + kStride <= bytes; at += kStride) {
    if (LineDiffers(a + at, b + at)) scan(at, kStride);
  }
  if (at < bytes) scan(at, bytes - at);
  return found;
}

void AddSteps(void* block, uint32_t unit, const uint32_t* positions, const uint64_t* steps, size_t count) {
  scalar::AddSteps(block, unit, positions, steps, count);
}

}  // namespace lockstep::kernels

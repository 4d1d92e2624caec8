#include "kernels/diff.h"

#include <cstring>

#include "kernels/hash.h"
#include "kernels/scalar.h"
#include "kernels/unit.h"

// Not among Highway's targets unless it is asked for.
#define HWY_WANT_AVX3_DL 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/diff.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/diff_bits-inl.h"
#include "kernels/diff_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

// Appends the changes of a piece that starts `at` bytes into its block.
size_t FindInPiece(const uint8_t* base, const uint8_t* target, size_t at, size_t bytes, uint32_t unit,
                   uint32_t* positions, uint64_t* steps) {
  const size_t count = scalar::FindChanges(base + at, target + at, bytes, unit, positions, steps);
  for (size_t i = 0; i < count; ++i) positions[i] += static_cast<uint32_t>(at / unit);
  return count;
}

#if HWY_TARGET == HWY_SCALAR

Diff FindChangesAndHash(const uint8_t* base, const uint8_t* target, size_t bytes, uint32_t unit, uint32_t* positions,
                        uint64_t* steps, const FoundChanges& taken) {
  constexpr size_t kLine = 64;
  size_t found = 0;
  for (size_t at = 0; at < bytes; at += kLine) {
    const size_t length = HWY_MIN(kLine, bytes - at);
    if (std::memcmp(base + at, target + at, length) == 0) continue;
    const size_t before = found;
    found += FindInPiece(base, target, at, length, unit, positions + found, steps + found);
    if (taken.take != nullptr) taken.take(taken.context, before, found);
  }
  return {found, Hash64(target, bytes)};
}

#else

template <typename Unit>
Diff FindUnits(const uint8_t* base, const uint8_t* target, size_t bytes, uint32_t* positions, uint64_t* steps,
               const FoundChanges& taken) {
#if HWY_TARGET == HWY_AVX3_DL
  using Changes = LaneChanges<Unit>;
#else
  using Changes = BitChanges<Unit>;
#endif
  static_assert(Changes::kSliceStripes % Xxh3State::kStripesPerPiece == 0);
  Changes changes;
  Xxh3State state;
  const size_t stripes = Xxh3State::Stripes(bytes);
  size_t found = 0;
  for (size_t stripe = 0; stripe < stripes; stripe += Changes::kSliceStripes) {
    const size_t at = stripe * Xxh3State::kStripeBytes;
    const size_t before = found;
    found += changes.Work(base + at, target + at, HWY_MIN(Changes::kSliceStripes, stripes - stripe), at / sizeof(Unit),
                          state, positions + found, steps + found);
    if (found > before && taken.take != nullptr) taken.take(taken.context, before, found);
  }
  const size_t tail = stripes * Xxh3State::kStripeBytes;
  const size_t before = found;
  found += FindInPiece(base, target, tail, bytes - tail, sizeof(Unit), positions + found, steps + found);
  if (found > before && taken.take != nullptr) taken.take(taken.context, before, found);
  return {found, stripes == 0 ? Hash64(target, bytes) : state.Finish(target, bytes)};
}

Diff FindChangesAndHash(const uint8_t* base, const uint8_t* target, size_t bytes, uint32_t unit, uint32_t* positions,
                        uint64_t* steps, const FoundChanges& found) {
  return WithUnit(unit,
                  [&](auto one) { return FindUnits<decltype(one)>(base, target, bytes, positions, steps, found); });
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {

HWY_EXPORT(FindChangesAndHash);

Diff FindChangesAndHash(const void* base, const void* target, size_t bytes, uint32_t unit, uint32_t* positions,
                        uint64_t* steps, const FoundChanges& found) {
  return HWY_DYNAMIC_DISPATCH(FindChangesAndHash)(
      static_cast<const uint8_t*>(base), static_cast<const uint8_t*>(target), bytes, unit, positions, steps, found);
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE

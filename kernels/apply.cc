#include "kernels/apply.h"

#include <algorithm>
#include <cstring>

#include "kernels/hash.h"

// Not among Highway's targets unless it is asked for.
#define HWY_WANT_AVX3_DL 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/apply.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/diff_stripes-inl.h"
#include "kernels/unit.h"

// The floor is memory again: the block comes from it once, and what changed goes back. Adding alone would wait for each
// of its lines in turn, as no prefetcher guesses them, and hashing afterwards for the others. So both go through the
// block together, a slice that stays in L1 at a time, and the hashing, which touches every line in order, asks for the
// line that is some way ahead. Then neither waits, and the pass takes little longer than hashing alone.
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

inline constexpr size_t kSliceBytes = 1024;
inline constexpr size_t kAhead = 8 * 1024;  // two pages: the processor's own prefetcher stops at their ends

// Adds the changes before unit `end`, and drops them.
template <typename Unit>
HWY_INLINE void AddBefore(size_t end, uint8_t* block, BlockChanges& changes) {
  const BlockChanges all = changes;
  size_t i = 0;
  for (; i < all.count && all.positions[i] < end; ++i) {
    uint8_t* const at = block + size_t{all.positions[i]} * sizeof(Unit);
    Unit value;
    std::memcpy(&value, at, sizeof value);
    value = static_cast<Unit>(value + static_cast<Unit>(all.steps[i]));
    std::memcpy(at, &value, sizeof value);
  }
  changes = {all.positions + i, all.steps + i, all.count - i};
}

#if HWY_TARGET == HWY_SCALAR

template <typename Unit>
uint64_t AddAndHash(uint8_t* block, size_t bytes, std::span<BlockChanges> deltas) {
  for (BlockChanges& delta : deltas) AddBefore<Unit>(bytes, block, delta);
  return Hash64(block, bytes);
}

#else

struct FetchAhead {
  const uint8_t* ahead;

  HWY_INLINE void Take(Bytes64, Bytes64, size_t at) const { __builtin_prefetch(ahead + at, 0, 2); }
};

template <typename Unit>
uint64_t AddAndHash(uint8_t* block, size_t bytes, std::span<BlockChanges> deltas) {
  static_assert(kSliceBytes % (Xxh3State::kStripeBytes * Xxh3State::kStripesPerPiece) == 0);
  Xxh3State state;
  const size_t hashed = Xxh3State::Stripes(bytes) * Xxh3State::kStripeBytes;
  for (size_t at = 0; at < hashed; at += kSliceBytes) {
    const size_t end = HWY_MIN(at + kSliceBytes, hashed);
    for (BlockChanges& delta : deltas) AddBefore<Unit>(end / sizeof(Unit), block, delta);
    const uint8_t* const slice = block + at;
    WorkStripes(slice, slice, (end - at) / Xxh3State::kStripeBytes, state, FetchAhead{slice + kAhead});
  }
  for (BlockChanges& delta : deltas) AddBefore<Unit>(bytes, block, delta);
  return hashed == 0 ? Hash64(block, bytes) : state.Finish(block, bytes);
}

#endif

uint64_t AddStepsAndHash(uint8_t* block, size_t bytes, uint32_t unit, std::span<BlockChanges> deltas) {
  return WithUnit(unit, [&](auto one) { return AddAndHash<decltype(one)>(block, bytes, deltas); });
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {

HWY_EXPORT(AddStepsAndHash);

uint64_t AddStepsAndHash(void* block, size_t bytes, uint32_t unit, std::span<BlockChanges> deltas) {
  return HWY_DYNAMIC_DISPATCH(AddStepsAndHash)(static_cast<uint8_t*>(block), bytes, unit, deltas);
}

void FetchFront(const void* block, size_t bytes) {
  constexpr size_t kLine = 64;
  const auto* const from = static_cast<const uint8_t*>(block);
  for (size_t at = 0; at < std::min(bytes, HWY_STATIC_DISPATCH(kAhead)); at += kLine) {
    __builtin_prefetch(from + at, 0, 2);
  }
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE

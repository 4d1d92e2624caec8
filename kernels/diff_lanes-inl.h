// Changes as compressed lanes: for instruction sets that move a vector's marked lanes to its front in one instruction,
// also those of 16 bits (AVX-512 with VBMI2).
//
// Every vector's places and steps are compressed and stored, changed or not; only where the next store goes depends on
// how many there were. They are stored narrow, as lanes, for a slice of the block that stays in L1, and widened after.
// The marked lanes are compressed in a register first: storing while compressing takes Zen 4 a hundred cycles.

// Included once for each instruction set.
#if defined(LOCKSTEP_KERNELS_DIFF_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_DIFF_LANES_INL_H_
#undef LOCKSTEP_KERNELS_DIFF_LANES_INL_H_
#else
#define LOCKSTEP_KERNELS_DIFF_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "kernels/diff_stripes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

template <typename Unit>
class LaneChanges {
 public:
  static constexpr size_t kSliceStripes = 256;  // 16 KiB

  // Appends what differs in a slice that starts at `first` (in units) of its block.
  size_t Work(const uint8_t* base, const uint8_t* target, size_t stripes, size_t first, Xxh3State& state,
              uint32_t* positions, uint64_t* steps) {
    const Sink sink = WorkStripes(base, target, stripes, state, Sink{places_, steps_, 0});
    if constexpr (sizeof(Unit) == 1) return WidenPairs(sink.count, first, positions, steps);
    return Widen(sink.count, first, positions, steps);
  }

 private:
  // A lane of the comparison. Single bytes travel as pairs: a step of 0 then says which of the two is the same.
  using Lane = std::conditional_t<sizeof(Unit) == 1, uint16_t, Unit>;

  struct Sink {
    Lane* places;
    Lane* steps;
    size_t count;

    HWY_INLINE void Take(Bytes64 old_bytes, Bytes64 new_bytes, size_t at) {
      const Tag<Lane> d;
      const Tag<Unit> units;
      const auto before = hn::BitCast(units, old_bytes);
      const auto after = hn::BitCast(units, new_bytes);
      const auto differs = hn::Ne(hn::BitCast(d, before), hn::BitCast(d, after));
      const auto where = hn::Iota(d, static_cast<Lane>(at / sizeof(Lane)));
      const auto step = hn::BitCast(d, hn::Sub(after, before));
      hn::StoreU(hn::Compress(where, differs), d, places + count);
      hn::StoreU(hn::Compress(step, differs), d, steps + count);
      count += hn::CountTrue(d, differs);
    }
  };

  size_t Widen(size_t count, size_t first, uint32_t* HWY_RESTRICT positions, uint64_t* HWY_RESTRICT steps) const {
    for (size_t i = 0; i < count; ++i) {
      positions[i] = static_cast<uint32_t>(first + places_[i]);
      steps[i] = steps_[i];
    }
    return count;
  }

  // Both bytes of a pair are written; one that is the same is overwritten by the next.
  size_t WidenPairs(size_t count, size_t first, uint32_t* HWY_RESTRICT positions, uint64_t* HWY_RESTRICT steps) const {
    size_t found = 0;
    for (size_t i = 0; i < count; ++i) {
      for (const uint32_t byte : {0, 1}) {
        positions[found] = static_cast<uint32_t>(first + 2 * size_t{places_[i]} + byte);
        steps[found] = (steps_[i] >> (8 * byte)) & 0xff;
        found += steps[found] != 0;
      }
    }
    return found;
  }

  // Vectors are stored whole: room for one more behind the last lane.
  static constexpr size_t kRoom = (kSliceStripes * Xxh3State::kStripeBytes + kVectorBytes) / sizeof(Lane);
  HWY_ALIGN Lane places_[kRoom];
  HWY_ALIGN Lane steps_[kRoom];
};

#endif
}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target

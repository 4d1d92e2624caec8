// Changes as bits: for instruction sets without a fast compress. Comparing leaves a bit for each lane in L1, for a
// slice of the block; then the bits become positions, and the units there steps.
//
// Turning bits into positions is where branches would depend on the data: a loop as long as a word has bits misses at
// its end once per word. So the first few of every word are written, there or not, and only words with more (one of 240
// at 1 %) are looped over.

// Included once for each instruction set.
#if defined(LOCKSTEP_KERNELS_DIFF_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_DIFF_BITS_INL_H_
#undef LOCKSTEP_KERNELS_DIFF_BITS_INL_H_
#else
#define LOCKSTEP_KERNELS_DIFF_BITS_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/diff_stripes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

template <typename Unit>
class BitChanges {
 public:
  static constexpr size_t kSliceStripes = 64;  // 4 KiB of each image, which are read again

  // Appends what differs in a slice that starts at `first` (in units) of its block.
  size_t Work(const uint8_t* base, const uint8_t* target, size_t stripes, size_t first, Xxh3State& state,
              uint32_t* positions, uint64_t* steps) {
    const size_t words = (stripes * Xxh3State::kStripeBytes + kWordBytes - 1) / kWordBytes;
    bits_[words - 1] = 0;  // the stripes may fill a part of it
    WorkStripes(base, target, stripes, state, Sink{reinterpret_cast<uint8_t*>(bits_)});
    size_t found = 0;
    for (size_t word = 0; word < words; ++word) {
      found += AppendPositions(UnitBits(bits_[word]), word * kWordBytes / sizeof(Unit), positions + found);
    }
    for (size_t i = 0; i < found; ++i) {
      Unit before, after;
      std::memcpy(&before, base + positions[i] * sizeof(Unit), sizeof(Unit));
      std::memcpy(&after, target + positions[i] * sizeof(Unit), sizeof(Unit));
      steps[i] = static_cast<Unit>(after - before);
      positions[i] += static_cast<uint32_t>(first);
    }
    return found;
  }

 private:
  // Wider units are compared by 16 bits too: then a vector of 16 bytes has a whole byte of bits.
  using Lane = std::conditional_t<sizeof(Unit) == 1, uint8_t, uint16_t>;
  static constexpr size_t kLanesPerUnit = sizeof(Unit) / sizeof(Lane);
  static constexpr size_t kWordBytes = 64 * sizeof(Lane);  // of the block, for each word of bits
  static constexpr size_t kWithoutAsking = 3;

  struct Sink {
    uint8_t* bits;

    HWY_INLINE void Take(Bytes64 old_bytes, Bytes64 new_bytes, size_t at) {
      const Tag<Lane> d;
      hn::StoreMaskBits(d, hn::Ne(hn::BitCast(d, old_bytes), hn::BitCast(d, new_bytes)), bits + at / sizeof(Lane) / 8);
    }
  };

  // A bit for each unit, at its first lane.
  static uint64_t UnitBits(uint64_t bits) {
    if constexpr (kLanesPerUnit >= 4) bits |= bits >> 2;
    if constexpr (kLanesPerUnit >= 2) bits |= bits >> 1;
    constexpr uint64_t kFirstLanes[] = {~uint64_t{0}, 0x5555'5555'5555'5555, 0x1111'1111'1111'1111};
    return bits & kFirstLanes[kLanesPerUnit / 2];
  }

  // There is always room for the few: a word stands for at least as many units.
  static size_t AppendPositions(uint64_t bits, size_t first, uint32_t* positions) {
    const size_t count = hwy::PopCount(bits);
    const auto append = [&](size_t i) {
      // A compiler that may meet 0 asks, which is a branch. The last bit changes nothing while another one is left.
      const auto lane = static_cast<size_t>(std::countr_zero(bits | uint64_t{1} << 63));
      positions[i] = static_cast<uint32_t>(first + lane / kLanesPerUnit);
      bits &= bits - 1;
    };
    for (size_t i = 0; i < kWithoutAsking; ++i) append(i);
    for (size_t i = kWithoutAsking; i < count; ++i) append(i);
    return count;
  }

  alignas(64) uint64_t bits_[kSliceStripes * Xxh3State::kStripeBytes / kWordBytes];
};

#endif
}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target

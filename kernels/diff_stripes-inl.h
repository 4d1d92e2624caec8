// The pass over both images of a block, for one instruction set: each stripe is given to a sink that takes out what
// differs, and to xxh3, while it is in registers.
//
// The floor is memory: both images come from it once. All else has to fit into the time in which the next cache lines
// arrive, and does, as long as nothing makes the processor throw away the work it has begun ahead. So neither the loop
// nor the sinks have a branch that depends on the data. Hashed here, the block's hash costs nothing; hashed afterwards,
// out of L2, it would cost a sixth of the whole.

// Included once for each instruction set.
#if defined(LOCKSTEP_KERNELS_DIFF_STRIPES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_KERNELS_DIFF_STRIPES_INL_H_
#undef LOCKSTEP_KERNELS_DIFF_STRIPES_INL_H_
#else
#define LOCKSTEP_KERNELS_DIFF_STRIPES_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/xxh3_state.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR  // which has no stripes: see diff.cc
namespace hn = hwy::HWY_NAMESPACE;

// The eight sums of a stripe lie in as few vectors as it takes. If the target's vector size is not known here, a vector
// has 16 bytes.
#if HWY_HAVE_SCALABLE
inline constexpr size_t kVectorBytes = 16;
#else
inline constexpr size_t kVectorBytes = HWY_MIN(Xxh3State::kStripeBytes, HWY_MAX_BYTES);
#endif
inline constexpr size_t kVectors = Xxh3State::kStripeBytes / kVectorBytes;

template <typename T>
using Tag = hn::CappedTag<T, kVectorBytes / sizeof(T)>;
using Bytes64 = hn::Vec<Tag<uint64_t>>;  // bytes of the block, or sums: cast as needed

HWY_INLINE Bytes64 LoadBytes(const uint8_t* from) {
  return hn::BitCast(Tag<uint64_t>(), hn::LoadU(Tag<uint8_t>(), from));
}

// sums += swapped(data) + low32(data ^ key) * high32(data ^ key)
HWY_INLINE Bytes64 MixStripe(Bytes64 sums, Bytes64 data, const uint8_t* key) {
  const Tag<uint32_t> d32;
  const Bytes64 keyed = hn::Xor(data, LoadBytes(key));
  const Bytes64 product = hn::MulEven(hn::BitCast(d32, keyed), hn::BitCast(d32, hn::ShiftRight<32>(keyed)));
  return hn::Add(product, hn::Add(sums, hn::Shuffle01(data)));
}

// sums = (sums ^ sums >> 47 ^ key) * prime
HWY_INLINE Bytes64 Scramble(Bytes64 sums, const uint8_t* key) {
  const Tag<uint32_t> d32;
  const Bytes64 mixed = hn::Xor(hn::Xor(sums, hn::ShiftRight<47>(sums)), LoadBytes(key));
  const auto prime = hn::Set(d32, Xxh3State::kPrime32);
  const Bytes64 low = hn::MulEven(hn::BitCast(d32, mixed), prime);
  const Bytes64 high = hn::MulEven(hn::BitCast(d32, hn::ShiftRight<32>(mixed)), prime);
  return hn::Add(low, hn::ShiftLeft<32>(high));
}

// One vector of a stripe, `at` bytes behind the start of both images.
template <class Sink>
HWY_INLINE Bytes64 WorkVector(const uint8_t* base, const uint8_t* target, size_t at, const uint8_t* key, Bytes64 sums,
                              Sink& sink) {
  const Bytes64 after = LoadBytes(target + at);
  sink.Take(LoadBytes(base + at), after, at);
  return MixStripe(sums, after, key);
}

// Works `stripes` stripes that start a piece of xxh3. The sink goes in and out by value, so that what it counts stays
// in registers.
template <class Sink>
HWY_INLINE Sink WorkStripes(const uint8_t* HWY_RESTRICT base, const uint8_t* HWY_RESTRICT target, size_t stripes,
                            Xxh3State& state, Sink sink) {
  constexpr size_t kLanes = kVectorBytes / sizeof(uint64_t);
  constexpr bool kTwo = kVectors > 1;
  constexpr bool kFour = kVectors > 2;
  const Tag<uint64_t> d;
  const uint8_t* const secret = state.secret();
  const uint8_t* const last_key = secret + Xxh3State::kScrambleKey;
  uint64_t* const sums = state.sums();
  // Names, not an array: a vector of unknown size cannot be in one.
  Bytes64 sums0 = hn::LoadU(d, sums);
  Bytes64 sums1 = hn::LoadU(d, sums + (kTwo ? kLanes : 0));
  Bytes64 sums2 = hn::LoadU(d, sums + (kFour ? 2 * kLanes : 0));
  Bytes64 sums3 = hn::LoadU(d, sums + (kFour ? 3 * kLanes : 0));
  size_t at = 0;
  while (stripes > 0) {
    const size_t now = HWY_MIN(stripes, Xxh3State::kStripesPerPiece);
    const uint8_t* key = secret;
    for (size_t i = 0; i < now; ++i, at += Xxh3State::kStripeBytes, key += Xxh3State::kKeyStride) {
      sums0 = WorkVector(base, target, at, key, sums0, sink);
      if constexpr (kTwo) {
        sums1 = WorkVector(base, target, at + kVectorBytes, key + kVectorBytes, sums1, sink);
      }
      if constexpr (kFour) {
        sums2 = WorkVector(base, target, at + 2 * kVectorBytes, key + 2 * kVectorBytes, sums2, sink);
        sums3 = WorkVector(base, target, at + 3 * kVectorBytes, key + 3 * kVectorBytes, sums3, sink);
      }
    }
    stripes -= now;
    if (now < Xxh3State::kStripesPerPiece) break;
    sums0 = Scramble(sums0, last_key);
    if constexpr (kTwo) sums1 = Scramble(sums1, last_key + kVectorBytes);
    if constexpr (kFour) {
      sums2 = Scramble(sums2, last_key + 2 * kVectorBytes);
      sums3 = Scramble(sums3, last_key + 3 * kVectorBytes);
    }
  }
  hn::StoreU(sums0, d, sums);
  if constexpr (kTwo) hn::StoreU(sums1, d, sums + kLanes);
  if constexpr (kFour) {
    hn::StoreU(sums2, d, sums + 2 * kLanes);
    hn::StoreU(sums3, d, sums + 3 * kLanes);
  }
  return sink;
}

#endif
}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target

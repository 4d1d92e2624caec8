#include "kernels/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

// Not among Highway's targets unless it is asked for.
#define HWY_WANT_AVX3_DL 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantise.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

// Only operations that IEEE 754 defines to the last bit are used on floats, one at a time: a product that is rounded
// once on a machine with fused operations and twice on another would be another checkpoint. So rounding to E4M3 and
// E2M1 is done on integers, and no product meets a sum. Magnitudes are compared as integers too: that orders NaN above
// infinity, and a maximum does not depend on the order of its elements.
HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Ints = hn::RebindToSigned<Floats>;
using VF = hn::Vec<Floats>;
using VW = hn::Vec<Words>;

inline constexpr uint32_t kSignBit = 0x8000'0000;
inline constexpr uint32_t kInfBits = 0x7f80'0000;
inline constexpr uint32_t kNanBits = 0x7fc0'0000;
inline constexpr uint8_t kE4M3Nan = 0x7f;
inline constexpr float kE4M3Max = 448;
inline constexpr float kE2M1Max = 6;

// --- elements of the source ---

struct SourceF32 {
  using Unit = uint32_t;
  static HWY_INLINE VW Widen(hn::Vec<hn::Rebind<Unit, Words>> v) { return v; }
  static uint32_t Widen(Unit magnitude) { return magnitude; }
};

struct SourceBF16 {
  using Unit = uint16_t;
  static HWY_INLINE VW Widen(hn::Vec<hn::Rebind<Unit, Words>> v) {
    return hn::ShiftLeft<16>(hn::PromoteTo(Words(), v));
  }
  static uint32_t Widen(Unit magnitude) { return uint32_t{magnitude} << 16; }
};

struct SourceF16 {
  using Unit = uint16_t;
  // The exponent moves to its place and gets the other bias, twice for infinity and NaN. What was subnormal becomes
  // 2^-14 × (1 + fraction), from which 2^-14 is taken away, exactly.
  static constexpr uint32_t kBias = uint32_t{127 - 15} << 23;
  static constexpr uint32_t kInf = uint32_t{31} << 23;
  static constexpr uint32_t kLeast = kBias + (uint32_t{1} << 23);
  static HWY_INLINE VW Widen(hn::Vec<hn::Rebind<Unit, Words>> v) {
    const Words words;
    const VW half = hn::PromoteTo(words, v);
    const VW magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(words, 0x7fff)));
    const VW bias = hn::Set(words, kBias);
    const auto is_beyond = hn::Gt(hn::BitCast(Ints(), magnitude), hn::Set(Ints(), static_cast<int32_t>(kInf - 1)));
    const VW more = hn::IfThenElseZero(hn::RebindMask(words, is_beyond), bias);
    const VW normal = hn::Add(hn::Add(magnitude, bias), more);
    const VF least = hn::BitCast(Floats(), hn::Set(words, kLeast));
    const VF with_least = hn::BitCast(Floats(), hn::Add(magnitude, hn::Set(words, kLeast)));
    const auto is_small = hn::Lt(hn::BitCast(Ints(), magnitude), hn::Set(Ints(), 1 << 23));
    const VW small = hn::BitCast(words, hn::Sub(with_least, least));
    const VW sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(words, 0x8000)));
    return hn::Or(hn::IfThenElse(hn::RebindMask(words, is_small), small, normal), sign);
  }
  static uint32_t Widen(Unit magnitude) {
    const uint32_t moved = uint32_t{magnitude} << 13;
    if (moved >= kInf) return moved + 2 * kBias;
    if (moved >= uint32_t{1} << 23) return moved + kBias;
    return std::bit_cast<uint32_t>(std::bit_cast<float>(moved + kLeast) - std::bit_cast<float>(kLeast));
  }
};

// A vector of `d` with the first `count` units at `from`, and zeros behind them.
template <class D, typename Unit = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadSome(D d, const Unit* from, size_t count) {
  if (HWY_LIKELY(count >= hn::Lanes(d))) return hn::LoadU(d, from);
  HWY_ALIGN Unit units[hn::MaxLanes(D())] = {};
  std::memcpy(units, from, count * sizeof(Unit));
  return hn::Load(d, units);
}

// The largest |x| of `rows` rows of `count` elements, as the bits of an F32, in vectors of at most kGroup.
template <class Source, size_t kGroup = 64, typename Unit = typename Source::Unit>
HWY_INLINE uint32_t MostBits(const Unit* from, size_t count, size_t rows = 1, size_t pitch = 0) {
  const hn::CappedTag<Unit, kGroup> units;
  const auto mask = hn::Set(units, static_cast<Unit>(static_cast<Unit>(~Unit{0}) >> 1));
  auto most = hn::Zero(units);
  for (size_t row = 0; row < rows; ++row, from += pitch) {
    for (size_t i = 0; i < count; i += hn::Lanes(units)) {
      most = hn::Max(most, hn::And(LoadSome(units, from + i, count - i), mask));
    }
  }
  return Source::Widen(hn::GetLane(hn::MaxOfLanes(units, most)));
}

// --- rounding ---

// A type of small floats: a sign, an exponent that counts from 1 − kBias on, kMantissa bits. kMost is the code of the
// largest magnitude; what is above kMostBits, as the bits of an F32, rounds to it, infinity too.
struct E4M3 {
  static constexpr int kMantissa = 3, kBias = 7, kSign = 7;
  static constexpr uint32_t kMost = 0x7e, kMostBits = 0x43e8'0000, kNan = kE4M3Nan;  // 464, the middle of 448 and 480
};

struct E2M1 {
  static constexpr int kMantissa = 1, kBias = 1, kSign = 3;
  static constexpr uint32_t kMost = 7, kMostBits = 0x40c0'0000, kNan = 0;  // 6
};

// The code of each lane's nearest value, in its lowest byte.
template <class Small>
HWY_INLINE VW RoundTo(VF x) {
  const Words words;
  const Ints ints;
  constexpr int kDropped = 23 - Small::kMantissa;
  constexpr uint32_t kBelowHalf = (uint32_t{1} << (kDropped - 1)) - 1;
  constexpr uint32_t kRebias = uint32_t{127 - Small::kBias} << 23;
  constexpr int kLeastNormal = (128 - Small::kBias) << 23;  // below it the values are multiples of the least one
  constexpr float kOverLeast = 1 << (Small::kMantissa + Small::kBias - 1);
  const VW bits = hn::BitCast(words, x);
  const VW magnitude = hn::And(bits, hn::Set(words, ~kSignBit));
  const auto as_int = hn::BitCast(ints, magnitude);
  const VW odd = hn::And(hn::ShiftRight<kDropped>(magnitude), hn::Set(words, 1));
  const VW normal = hn::ShiftRight<kDropped>(hn::Add(hn::Add(magnitude, odd), hn::Set(words, kBelowHalf - kRebias)));
  const VW small =
      hn::BitCast(words, hn::NearestInt(hn::Mul(hn::BitCast(Floats(), magnitude), hn::Set(Floats(), kOverLeast))));
  const auto is_small = hn::RebindMask(words, hn::Lt(as_int, hn::Set(ints, kLeastNormal)));
  const auto is_most = hn::RebindMask(words, hn::Gt(as_int, hn::Set(ints, int{Small::kMostBits})));
  const auto is_nan = hn::RebindMask(words, hn::Gt(as_int, hn::Set(ints, int{kInfBits})));
  const VW sign = hn::And(hn::ShiftRight<31 - Small::kSign>(bits), hn::Set(words, 1u << Small::kSign));
  const VW value = hn::IfThenElse(is_most, hn::Set(words, Small::kMost), hn::IfThenElse(is_small, small, normal));
  return hn::IfThenElse(is_nan, hn::Set(words, Small::kNan), hn::Or(value, sign));
}

HWY_INLINE float Canonical(float x) {
  return x != x ? std::bit_cast<float>(kNanBits) : x;
}

// The power of two at or above x >= 0, as the bits of an F32; infinity and NaN stay.
HWY_INLINE uint32_t CeilToPowerOfTwo(uint32_t bits) {
  if (bits >= kInfBits) return bits;
  return (bits + 0x7f'ffff) & kInfBits;
}

// --- what is done with each element ---

struct Times {
  float by;
  HWY_INLINE VF operator()(VF x) const { return hn::Mul(x, hn::Set(Floats(), by)); }
};

struct Over {
  float by;
  HWY_INLINE VF operator()(VF x) const { return hn::Div(x, hn::Set(Floats(), by)); }
};

// Codes to bytes. (Highway 1.0's TruncateTo is wrong here with AVX3_DL: github.com/google/highway/pull/1276.)
HWY_INLINE hn::Vec<hn::Rebind<uint8_t, Words>> ToBytes(VW codes) {
  return hn::DemoteTo(hn::Rebind<uint8_t, Words>(), hn::BitCast(Ints(), codes));
}

// The code of each element, after `scaled`, in a byte.
template <class Source, class Small, class Scaled>
HWY_INLINE void Store(const typename Source::Unit* from, size_t count, Scaled scaled, uint8_t* to) {
  const Words words;
  const hn::Rebind<typename Source::Unit, Words> units;
  const hn::Rebind<uint8_t, Words> bytes;
  const size_t lanes = hn::Lanes(words);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VF x = hn::BitCast(Floats(), Source::Widen(hn::LoadU(units, from + i)));
    hn::StoreU(ToBytes(RoundTo<Small>(scaled(x))), bytes, to + i);
  }
  if (i == count) return;
  const VF x = hn::BitCast(Floats(), Source::Widen(LoadSome(units, from + i, count - i)));
  HWY_ALIGN uint8_t some[hn::MaxLanes(Words())];
  hn::Store(ToBytes(RoundTo<Small>(scaled(x))), bytes, some);
  std::memcpy(to + i, some, count - i);
}

// --- formats ---

template <class Source>
void Blocks(const typename Source::Unit* from, size_t rows, size_t columns, BlockScale kind, uint8_t* values,
            float* scales) {
  for (size_t row = 0; row < rows; row += kFp8BlockSide) {
    const size_t last = std::min(row + kFp8BlockSide, rows);
    for (size_t column = 0; column < columns; column += kFp8BlockSide) {
      const size_t width = std::min(kFp8BlockSide, columns - column);
      const uint32_t most = MostBits<Source>(from + row * columns + column, width, last - row, columns);
      const uint32_t clamped = std::max(most, std::bit_cast<uint32_t>(1e-4f));
      float scale = Canonical(std::bit_cast<float>(clamped) / kE4M3Max);
      if (kind == BlockScale::kPowerOfTwo)
        scale = std::bit_cast<float>(CeilToPowerOfTwo(std::bit_cast<uint32_t>(scale)));
      *scales++ = scale;
      const Times scaled{1.0f / scale};
      for (size_t r = row; r < last; ++r) {
        Store<Source, E4M3>(from + r * columns + column, width, scaled, values + r * columns + column);
      }
    }
  }
}

template <class Source>
void Rows(const typename Source::Unit* from, size_t rows, size_t columns, uint8_t* values, float* scales) {
  for (size_t row = 0; row < rows; ++row, from += columns, values += columns) {
    scales[row] = Fp8Scale(std::bit_cast<float>(MostBits<Source>(from, columns)));
    Store<Source, E4M3>(from, columns, Over{scales[row]}, values);
  }
}

template <class Source>
void Whole(const typename Source::Unit* from, size_t count, float scale, uint8_t* values) {
  Store<Source, E4M3>(from, count, Over{scale}, values);
}

template <class Source>
void Mx(const typename Source::Unit* from, size_t groups, uint8_t* values, uint8_t* scales) {
  for (size_t group = 0; group < groups; ++group, from += kMxfp8Group, values += kMxfp8Group) {
    const uint32_t bits = MostBits<Source, kMxfp8Group>(from, kMxfp8Group);
    if (bits > kInfBits) {
      scales[group] = 0xff;
      std::memset(values, kE4M3Nan, kMxfp8Group);
      continue;
    }
    const float ratio = std::bit_cast<float>(std::max(bits, uint32_t{1} << 23)) / kE4M3Max;
    // Rounded up to a power of two: 2^(scale - 127). A ratio of at most 2^-127 has the scale 0.
    const auto ratio_bits = std::bit_cast<uint32_t>(ratio);
    const uint32_t up = ratio_bits <= 0x40'0000 ? 0 : std::min((ratio_bits + 0x7f'ffff) >> 23, uint32_t{254});
    scales[group] = static_cast<uint8_t>(up);
    // Its reciprocal 2^(127 - scale) is exact, so that a product is a quotient. 2^-127 has no exponent of its own.
    const uint32_t reciprocal = up == 254 ? 0x40'0000 : (254 - up) << 23;
    Store<Source, E4M3>(from, kMxfp8Group, Times{std::bit_cast<float>(reciprocal)}, values);
  }
}

HWY_INLINE float FromE4M3(uint32_t value) {
  if (value == kE4M3Nan) return std::bit_cast<float>(kNanBits);
  if (value < 8) return static_cast<float>(value) / 512;
  return std::bit_cast<float>((value << 20) + (uint32_t{127 - 7} << 23));
}

// Eight codes of four bits, each in a byte, as four bytes.
HWY_INLINE uint32_t PackCodes(const uint8_t* codes) {
  uint64_t word;
  std::memcpy(&word, codes, sizeof word);
  word = (word | word >> 4) & 0x00ff'00ff'00ff'00ff;
  word = (word | word >> 8) & 0x0000'ffff'0000'ffff;
  return static_cast<uint32_t>(word | word >> 16);
}

HWY_INLINE float Reciprocal(float x) {
  return x == 0 ? 1e-8f : 1.0f / x;
}

template <class Source>
void Nv(const typename Source::Unit* from, size_t groups, float global, uint8_t* values, uint8_t* scales) {
  const Floats floats;
  const float unit = Reciprocal(global);
  for (size_t group = 0; group < groups; ++group, from += kNvfp4Group, values += kNvfp4Group / 2) {
    const uint32_t most = MostBits<Source, kNvfp4Group>(from, kNvfp4Group);
    const float wanted = global * (std::bit_cast<float>(most) * (1.0f / kE2M1Max));
    const uint32_t scale = hn::GetLane(RoundTo<E4M3>(hn::Set(floats, wanted > kE4M3Max ? kE4M3Max : wanted)));
    scales[group] = static_cast<uint8_t>(scale);
    const float step = FromE4M3(scale) * unit;
    const Times scaled{Reciprocal(step)};
    uint8_t codes[kNvfp4Group];
    Store<Source, E2M1>(from, kNvfp4Group, scaled, codes);
    for (size_t half = 0; half < 2; ++half) {
      const uint32_t packed = PackCodes(codes + 8 * half);
      std::memcpy(values + 4 * half, &packed, sizeof packed);
    }
  }
}

template <class Source>
float Most(const typename Source::Unit* from, size_t count) {
  return Canonical(std::bit_cast<float>(MostBits<Source>(from, count)));
}

// body(Source(), elements) with the source's type.
template <typename Body>
HWY_INLINE auto WithSource(const FloatRows& rows, Body body) {
  switch (rows.type) {
    case FloatType::kF32:
      return body(SourceF32(), static_cast<const uint32_t*>(rows.data));
    case FloatType::kF16:
      return body(SourceF16(), static_cast<const uint16_t*>(rows.data));
    default:
      return body(SourceBF16(), static_cast<const uint16_t*>(rows.data));
  }
}

float AbsMaxOf(const FloatRows& rows) {
  return WithSource(rows, [&]<class S>(S, const auto* from) { return Most<S>(from, rows.rows * rows.columns); });
}

void Fp8BlocksOf(const FloatRows& rows, BlockScale kind, uint8_t* values, float* scales) {
  WithSource(rows,
             [&]<class S>(S, const auto* from) { Blocks<S>(from, rows.rows, rows.columns, kind, values, scales); });
}

void Fp8RowsOf(const FloatRows& rows, uint8_t* values, float* scales) {
  WithSource(rows, [&]<class S>(S, const auto* from) { Rows<S>(from, rows.rows, rows.columns, values, scales); });
}

void Fp8Of(const FloatRows& rows, float scale, uint8_t* values) {
  WithSource(rows, [&]<class S>(S, const auto* from) { Whole<S>(from, rows.rows * rows.columns, scale, values); });
}

void Mxfp8Of(const FloatRows& rows, uint8_t* values, uint8_t* scales) {
  WithSource(
      rows, [&]<class S>(S, const auto* from) { Mx<S>(from, rows.rows * rows.columns / kMxfp8Group, values, scales); });
}

void Nvfp4Of(const FloatRows& rows, float global, uint8_t* values, uint8_t* scales) {
  WithSource(rows, [&]<class S>(S, const auto* from) {
    Nv<S>(from, rows.rows * rows.columns / kNvfp4Group, global, values, scales);
  });
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {

HWY_EXPORT(AbsMaxOf);
HWY_EXPORT(Fp8BlocksOf);
HWY_EXPORT(Fp8RowsOf);
HWY_EXPORT(Fp8Of);
HWY_EXPORT(Mxfp8Of);
HWY_EXPORT(Nvfp4Of);

float AbsMax(const FloatRows& rows) {
  return HWY_DYNAMIC_DISPATCH(AbsMaxOf)(rows);
}

void QuantiseFp8Blocks(const FloatRows& rows, BlockScale scale, uint8_t* values, float* scales) {
  HWY_DYNAMIC_DISPATCH(Fp8BlocksOf)(rows, scale, values, scales);
}

void QuantiseFp8Rows(const FloatRows& rows, uint8_t* values, float* scales) {
  HWY_DYNAMIC_DISPATCH(Fp8RowsOf)(rows, values, scales);
}

float Fp8Scale(float abs_max) {
  const float scale = abs_max / 448;
  if (scale != scale) return std::bit_cast<float>(uint32_t{0x7fc0'0000});
  return scale == 0 ? std::numeric_limits<float>::epsilon() : scale;
}

void QuantiseFp8(const FloatRows& rows, float scale, uint8_t* values) {
  HWY_DYNAMIC_DISPATCH(Fp8Of)(rows, scale, values);
}

void QuantiseMxfp8(const FloatRows& rows, uint8_t* values, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(Mxfp8Of)(rows, values, scales);
}

float Nvfp4GlobalScale(float abs_max) {
  // As PyTorch divides a number by a tensor: by its reciprocal.
  const float scale = 448 * 6 * (1 / abs_max);
  return std::isfinite(scale) ? scale : 1;
}

void QuantiseNvfp4(const FloatRows& rows, float global, uint8_t* values, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(Nvfp4Of)(rows, global, values, scales);
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE

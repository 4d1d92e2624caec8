#include "common/changes/version_changes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace lockstep::changes {
namespace {

using model::DType;

// A floating-point number of fewer bits, without its infinities and NaN, shifted to where a float has its own; `scale`
// makes up for the exponent's bias. Right of subnormal numbers, too.
float Widened(uint32_t sign, uint32_t rest, float scale) {
  return std::copysign(std::bit_cast<float>(rest) * scale, std::bit_cast<float>(sign));
}

// An element's value as a floating-point number.
template <typename Stored, auto ValueOf>
struct Numbers {
  static constexpr size_t kBytes = sizeof(Stored);
  static auto At(const std::byte* from) {
    Stored stored;
    std::memcpy(&stored, from, sizeof stored);
    return ValueOf(stored);
  }
};

template <typename Stored>
double Itself(Stored stored) {
  return static_cast<double>(stored);
}
float OfBF16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}
float OfF16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t rest = uint32_t{bits & 0x7fffU} << 13;
  constexpr uint32_t kInfinite = 0x7c00U << 13;
  return rest >= kInfinite ? std::bit_cast<float>(sign | rest | 0x7f800000U) : Widened(sign, rest, 0x1p112F);
}
float OfF8E5M2(uint8_t bits) {
  return OfF16(static_cast<uint16_t>(bits << 8));
}
float OfF8E4M3(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  return Widened(uint32_t{bits & 0x80U} << 24, uint32_t{bits & 0x7fU} << 20, 0x1p120F);
}

// Of the types without infinities and -0, the byte of -0 is NaN.
constexpr uint8_t kFnuzNan = 0x80;
float OfF8E4M3FNUZ(uint8_t bits) {
  if (bits == kFnuzNan) return std::numeric_limits<float>::quiet_NaN();
  return Widened(uint32_t{bits & 0x80U} << 24, uint32_t{bits & 0x7fU} << 20, 0x1p119F);
}
float OfF8E5M2FNUZ(uint8_t bits) {
  if (bits == kFnuzNan) return std::numeric_limits<float>::quiet_NaN();
  return Widened(uint32_t{bits & 0x80U} << 24, uint32_t{bits & 0x7fU} << 21, 0x1p111F);
}
double OfF8E8M0(uint8_t bits) {
  return bits == 0xff ? std::nan("") : std::ldexp(1.0, int{bits} - 127);
}

// Calls work(Numbers) of the dtype. False: its elements have no value here.
template <typename Work>
bool WithNumbers(DType dtype, const Work& work) {
  switch (dtype) {
    case DType::kBF16:
      work(Numbers<uint16_t, OfBF16>());
      return true;
    case DType::kF16:
      work(Numbers<uint16_t, OfF16>());
      return true;
    case DType::kF32:
      work(Numbers<float, Itself<float>>());
      return true;
    case DType::kF64:
      work(Numbers<double, Itself<double>>());
      return true;
    case DType::kF8E4M3:
      work(Numbers<uint8_t, OfF8E4M3>());
      return true;
    case DType::kF8E5M2:
      work(Numbers<uint8_t, OfF8E5M2>());
      return true;
    case DType::kF8E4M3FNUZ:
      work(Numbers<uint8_t, OfF8E4M3FNUZ>());
      return true;
    case DType::kF8E5M2FNUZ:
      work(Numbers<uint8_t, OfF8E5M2FNUZ>());
      return true;
    case DType::kF8E8M0:
      work(Numbers<uint8_t, OfF8E8M0>());
      return true;
    case DType::kU16:
      work(Numbers<uint16_t, Itself<uint16_t>>());
      return true;
    case DType::kU32:
      work(Numbers<uint32_t, Itself<uint32_t>>());
      return true;
    case DType::kU64:
      work(Numbers<uint64_t, Itself<uint64_t>>());
      return true;
    case DType::kU8:
      work(Numbers<uint8_t, Itself<uint8_t>>());
      return true;
    case DType::kI8:
      work(Numbers<int8_t, Itself<int8_t>>());
      return true;
    case DType::kI16:
      work(Numbers<int16_t, Itself<int16_t>>());
      return true;
    case DType::kI32:
      work(Numbers<int32_t, Itself<int32_t>>());
      return true;
    case DType::kI64:
      work(Numbers<int64_t, Itself<int64_t>>());
      return true;
    default:
      return false;
  }
}

// A tensor's bytes within a block. Calls work(tensor, from, to) for each that has some: [from, to) from the block's
// start.
template <typename Work>
void ForEachTensor(const model::ModelLayout& layout, ByteRange range, const Work& work) {
  for (size_t tensor = layout.TensorAt(range.offset); tensor < layout.tensors().size(); ++tensor) {
    const uint64_t begin = layout.tensors()[tensor].offset;
    const uint64_t end = begin + layout.tensor_bytes(tensor);
    if (begin >= range.end()) return;
    if (end <= range.offset || begin == end) continue;
    work(tensor, std::max(begin, range.offset) - range.offset, std::min(end, range.end()) - range.offset);
  }
}

// Of the elements at `at(i)`, bytes from the start of both images. A function of its own, and sums in variables: else
// the compiler keeps them in memory, and each addition waits for the one before to be stored.
template <typename Number, typename At>
[[gnu::noinline]] TensorChange CountValues(const std::byte* base, const std::byte* target, size_t count, At at) {
  using Value = decltype(Number::At(base));
  double squares[2] = {};
  double largest = 0;
  int64_t nonfinite = 0;
  const auto add = [&](size_t i, double& sum) {
    const uint64_t byte = at(i);
    const Value before = Number::At(base + byte);
    const Value after = Number::At(target + byte);
    double difference = std::abs(after - before);
    if (!(difference <= std::numeric_limits<Value>::max())) [[unlikely]] {  // also where it is NaN
      nonfinite += int{std::isfinite(before)} - int{std::isfinite(after)};
      if (!std::isfinite(before) || !std::isfinite(after)) return;
      difference = std::abs(double{after} - double{before});
    }
    sum += difference * difference;
    largest = std::max(largest, difference);
  };
  for (size_t i = 0; i + 1 < count; i += 2) {
    add(i, squares[0]);
    add(i + 1, squares[1]);
  }
  if (count % 2 == 1) add(count - 1, squares[0]);
  return {count, nonfinite, squares[0] + squares[1], largest};
}

template <typename Number>
TensorChange CountValues(const std::byte* base, const std::byte* target, uint64_t origin, uint32_t unit,
                         std::span<const uint32_t> positions) {
  if (unit == Number::kBytes) {
    const auto at = [from = positions.data()](size_t i) { return uint64_t{from[i]} * Number::kBytes; };
    return CountValues<Number>(base, target, positions.size(), at);
  }
  std::vector<uint64_t> elements;  // a unit is a part of one, which is counted once
  for (const uint32_t position : positions) {
    const uint64_t byte = (uint64_t{position} * unit - origin) / Number::kBytes * Number::kBytes + origin;
    if (elements.empty() || elements.back() != byte) elements.push_back(byte);
  }
  return CountValues<Number>(base, target, elements.size(), [from = elements.data()](size_t i) { return from[i]; });
}

// Of elements of `bytes` bytes, one of which begins at `origin`.
uint64_t CountElements(uint64_t origin, uint32_t unit, std::span<const uint32_t> positions, uint64_t bytes) {
  uint64_t count = 0;
  uint64_t last = std::numeric_limits<uint64_t>::max();
  for (const uint32_t position : positions) {
    const uint64_t element = (uint64_t{position} * unit - origin) / bytes;
    count += element != std::exchange(last, element) ? 1 : 0;
  }
  return count;
}

}  // namespace

void TensorChange::Add(const TensorChange& more) {
  elements += more.elements;
  nonfinite += more.nonfinite;
  squares += more.squares;
  largest = std::max(largest, more.largest);
}

VersionChanges SumUp(const model::ModelLayout& layout, Version version, Version base,
                     std::vector<TensorChange> tensors) {
  VersionChanges changes{version, base, std::move(tensors), {}};
  for (size_t tensor = 0; tensor < changes.tensors.size(); ++tensor) {
    const uint64_t elements = ElementsOf(layout, tensor);
    changes.all.Add(changes.tensors[tensor]);
    changes.elements += elements;
    changes.unchanged_tensors += base != 0 && elements > 0 && changes.tensors[tensor].elements == 0 ? 1 : 0;
  }
  return changes;
}

uint64_t ElementsOf(const model::ModelLayout& layout, size_t tensor) {
  return layout.tensor_bytes(tensor) * 8 / model::FindDType(layout.tensors()[tensor].dtype)->bits;
}

ChangeCounter::ChangeCounter(const model::ModelLayout& layout, BlockIndex block, const std::byte* base,
                             const std::byte* target)
    : layout_(layout),
      range_(layout.block_range(block)),
      unit_(layout.block_unit(block)),
      base_(base),
      target_(target),
      tensor_(layout.TensorAt(range_.offset)) {}

void ChangeCounter::Take(std::span<const uint32_t> positions) {
  while (!positions.empty()) {
    const uint64_t at = range_.offset + uint64_t{positions[0]} * unit_;
    while (layout_.tensors()[tensor_].offset + layout_.tensor_bytes(tensor_) <= at) ++tensor_;
    const uint64_t begin = std::max(layout_.tensors()[tensor_].offset, range_.offset) - range_.offset;
    const uint64_t end = layout_.tensors()[tensor_].offset + layout_.tensor_bytes(tensor_) - range_.offset;
    const auto last =
        std::ranges::lower_bound(positions, end, {}, [&](uint32_t unit) { return uint64_t{unit} * unit_; });
    const std::span<const uint32_t> own(positions.begin(), last);
    if (changes_.empty() || changes_.back().first != tensor_) changes_.emplace_back(tensor_, TensorChange());
    TensorChange& change = changes_.back().second;
    const DType dtype = layout_.tensors()[tensor_].dtype;
    const bool counted = WithNumbers(
        dtype, [&]<typename Number>(Number) { change.Add(CountValues<Number>(base_, target_, begin, unit_, own)); });
    if (!counted) change.elements += CountElements(begin, unit_, own, std::max(model::FindDType(dtype)->bits / 8, 1U));
    positions = positions.subspan(own.size());
  }
}

BlockChange CountChanges(const model::ModelLayout& layout, BlockIndex block, ByteView base, ByteView target) {
  const uint32_t unit = layout.block_unit(block);
  std::vector<uint32_t> positions;
  for (uint32_t at = 0; at < target.size(); at += unit) {
    if (std::memcmp(base.data() + at, target.data() + at, unit) != 0) positions.push_back(at / unit);
  }
  ChangeCounter counter(layout, block, base.data(), target.data());
  counter.Take(positions);
  return counter.Finish();
}

BlockChange CountNonfinite(const model::ModelLayout& layout, BlockIndex block, ByteView target) {
  BlockChange counts;
  ForEachTensor(layout, layout.block_range(block), [&](size_t tensor, uint64_t from, uint64_t to) {
    int64_t nonfinite = 0;
    const auto count_where = [&]<typename Bits>(Bits, const auto& is_nonfinite) {
      for (uint64_t at = from; at < to; at += sizeof(Bits)) {
        Bits bits;
        std::memcpy(&bits, target.data() + at, sizeof bits);
        nonfinite += is_nonfinite(bits) ? 1 : 0;
      }
    };
    const auto count = [&]<typename Bits>(Bits exponent) {
      count_where(exponent, [exponent](Bits bits) { return (bits & exponent) == exponent; });
    };
    switch (layout.tensors()[tensor].dtype) {
      case DType::kBF16:
        count(uint16_t{0x7f80});
        break;
      case DType::kF16:
        count(uint16_t{0x7c00});
        break;
      case DType::kF32:
        count(uint32_t{0x7f80'0000});
        break;
      case DType::kF64:
        count(uint64_t{0x7ff0'0000'0000'0000});
        break;
      case DType::kF8E5M2:
        count(uint8_t{0x7c});
        break;
      case DType::kF8E4M3:
        count(uint8_t{0x7f});  // it has NaN, and no infinity
        break;
      case DType::kF8E4M3FNUZ:
      case DType::kF8E5M2FNUZ:
        count_where(kFnuzNan, [](uint8_t bits) { return bits == kFnuzNan; });
        break;
      case DType::kF8E8M0:
        count(uint8_t{0xff});
        break;
      default:
        break;
    }
    if (nonfinite > 0) counts.emplace_back(static_cast<uint32_t>(tensor), TensorChange{.nonfinite = nonfinite});
  });
  return counts;
}

}  // namespace lockstep::changes

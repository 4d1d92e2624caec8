#include "common/changes/version_changes.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

namespace lockstep::changes {
namespace {

using model::DType;
using model::ModelLayout;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

uint16_t BF16Of(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

// Two images of a model, and where they differ in a block.
struct Images {
  std::shared_ptr<const ModelLayout> layout;
  Bytes base = Bytes(layout->data_bytes());
  Bytes target = base;

  template <typename Stored>
  void Set(size_t tensor, size_t element, Stored before, Stored after) {
    const uint64_t at = layout->tensors()[tensor].offset + element * sizeof(Stored);
    std::memcpy(base.data() + at, &before, sizeof before);
    std::memcpy(target.data() + at, &after, sizeof after);
  }

  // Of all blocks, by tensor.
  std::vector<TensorChange> CountAll() const {
    std::vector<TensorChange> all(layout->tensors().size());
    for (const BlockIndex block : layout->AllBlocks()) {
      const ByteRange range = layout->block_range(block);
      const auto changes = CountChanges(*layout, block, ByteView(base).subspan(range.offset, range.bytes),
                                        ByteView(target).subspan(range.offset, range.bytes));
      for (const auto& [tensor, change] : changes) all[tensor].Add(change);
    }
    return all;
  }
};

std::shared_ptr<const ModelLayout> Layout(std::vector<model::TensorMeta> tensors) {
  (void)model::AssignOffsets(tensors);
  return *ModelLayout::Create(std::move(tensors), 4096);
}

TEST_CASE("Changes are counted by tensor, with their norm and the largest") {
  Images images{Layout({{"a", DType::kF32, {3000}}, {"b", DType::kBF16, {5000}}, {"c", DType::kBF16, {10}}})};
  images.Set<float>(0, 1, 1.0F, 4.0F);
  images.Set<float>(0, 2999, 0.0F, -4.0F);
  images.Set<uint16_t>(1, 4999, BF16Of(2.0F), BF16Of(1.5F));
  const auto all = images.CountAll();
  CHECK((all[0].elements == 2 && all[0].squares == 25 && all[0].largest == 4));
  CHECK((all[1].elements == 1 && all[1].squares == 0.25 && all[1].largest == 0.5));
  CHECK((all[2].elements == 0 && all[2].squares == 0 && all[2].nonfinite == 0));
}

TEST_CASE("NaN and Inf are counted as they come and go, and are in no norm") {
  Images images{Layout({{"a", DType::kF32, {8}}})};
  images.Set<float>(0, 0, 1.0F, kNan);
  images.Set<float>(0, 1, kInf, 1.0F);
  images.Set<float>(0, 2, 1.0F, -kInf);
  images.Set<float>(0, 3, kNan, kInf);
  const TensorChange change = images.CountAll()[0];
  CHECK((change.elements == 4 && change.nonfinite == 1 && change.squares == 0 && change.largest == 0));
  const auto whole = CountNonfinite(*images.layout, 0, images.target);
  REQUIRE(whole.size() == 1);
  CHECK((whole[0].first == 0 && whole[0].second.nonfinite == 3));
}

// Every value of a type with few bits, against its definition.
enum class Ends { kInf, kNan, kFnuz };  // of the largest exponents: infinities and NaN; NaN; neither, but NaN for -0
double ByDefinition(uint32_t bits, int exponent_bits, int mantissa_bits, Ends ends) {
  if (ends == Ends::kFnuz && bits == 1U << (exponent_bits + mantissa_bits)) return std::nan("");
  const int bias = (1 << (exponent_bits - 1)) - (ends == Ends::kFnuz ? 0 : 1);
  const uint32_t mantissa = bits & ((1U << mantissa_bits) - 1);
  const uint32_t exponent = bits >> mantissa_bits & ((1U << exponent_bits) - 1);
  const double sign = (bits >> (mantissa_bits + exponent_bits) & 1) != 0 ? -1 : 1;
  const bool top = exponent == (1U << exponent_bits) - 1;
  if (ends == Ends::kInf && top) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (ends == Ends::kNan && top && mantissa == (1U << mantissa_bits) - 1) return std::nan("");
  const double fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits);
  return sign *
         (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, static_cast<int>(exponent) - bias));
}

template <typename Stored>
void CheckEveryValue(DType dtype, int exponent_bits, int mantissa_bits, Ends ends) {
  Images images{Layout({{"a", dtype, {1}}})};
  for (uint32_t bits = 1; bits <= std::numeric_limits<Stored>::max(); ++bits) {
    images.Set<Stored>(0, 0, 0, static_cast<Stored>(bits));
    const TensorChange change = images.CountAll()[0];
    const double value = ByDefinition(bits, exponent_bits, mantissa_bits, ends);
    const bool finite = std::isfinite(value);
    const auto whole = CountNonfinite(*images.layout, 0, images.target);
    const bool right = change.elements == 1 && change.nonfinite == int{!finite} && whole.empty() == finite &&
                       change.largest == (finite ? std::abs(value) : 0);
    if (!right) FAIL("value " << bits << " is " << value << ", and counts as " << change.largest);
  }
}

TEST_CASE("Every value of the floating-point types of 8 and 16 bits is what it is defined to be") {
  CheckEveryValue<uint16_t>(DType::kBF16, 8, 7, Ends::kInf);
  CheckEveryValue<uint16_t>(DType::kF16, 5, 10, Ends::kInf);
  CheckEveryValue<uint8_t>(DType::kF8E5M2, 5, 2, Ends::kInf);
  CheckEveryValue<uint8_t>(DType::kF8E4M3, 4, 3, Ends::kNan);
  CheckEveryValue<uint8_t>(DType::kF8E5M2FNUZ, 5, 2, Ends::kFnuz);
  CheckEveryValue<uint8_t>(DType::kF8E4M3FNUZ, 4, 3, Ends::kFnuz);
}

TEST_CASE("Scales are powers of two, and the last of them is NaN") {
  Images images{Layout({{"a", DType::kF8E8M0, {2}}})};
  images.Set<uint8_t>(0, 0, 127, 128);
  images.Set<uint8_t>(0, 1, 3, 255);
  const TensorChange change = images.CountAll()[0];
  CHECK((change.elements == 2 && change.largest == 1 && change.nonfinite == 1));
  CHECK(CountNonfinite(*images.layout, 0, images.target)[0].second.nonfinite == 1);
}

TEST_CASE("Elements without a value count once, whatever they are compared by") {
  Images images{Layout({{"a", DType::kC64, {4}}, {"b", DType::kU8, {3}}, {"c", DType::kBool, {2}}})};
  REQUIRE(images.layout->block_unit(0) == 1);
  images.Set<uint64_t>(0, 1, 0, ~uint64_t{0});
  images.Set<uint8_t>(2, 1, 0, 1);
  CHECK((images.CountAll()[0].elements == 1 && images.CountAll()[2].elements == 1));
}

TEST_CASE("An element that is compared in several units counts once") {
  // The block's unit is the byte of `b`.
  Images images{Layout({{"a", DType::kF32, {4}}, {"b", DType::kU8, {3}}, {"c", DType::kF4, {2}}})};
  REQUIRE(images.layout->block_unit(0) == 1);
  images.Set<float>(0, 1, 1.0F, -3.3F);
  images.Set<float>(0, 2, 0.0F, 7.7F);
  images.Set<uint8_t>(1, 2, 7, 9);
  images.Set<uint8_t>(2, 0, 0x12, 0x21);
  const auto all = images.CountAll();
  CHECK((all[0].elements == 2 && all[0].largest == double{7.7F}));
  CHECK((all[1].elements == 1 && all[1].largest == 2));
  CHECK((all[2].elements == 1 && all[2].largest == 0 && all[2].squares == 0));  // two packed values have none here
}

TEST_CASE("Counts of random models are those of a plain loop") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<model::TensorMeta> tensors;
    for (size_t i = 1 + random() % 6; i > 0; --i) {
      tensors.push_back({"t" + std::to_string(i), random() % 2 == 0 ? DType::kF32 : DType::kBF16, {random() % 5000}});
    }
    tensors.push_back({"last", DType::kBF16, {7}});
    Images images{Layout(tensors)};
    std::vector<TensorChange> expected(images.layout->tensors().size());
    for (size_t tensor = 0; tensor < expected.size(); ++tensor) {
      const model::TensorMeta& meta = images.layout->tensors()[tensor];
      for (size_t element = 0; element < meta.shape[0]; ++element) {
        if (random() % 50 != 0) continue;
        const float before = static_cast<float>(random() % 64);
        const float after = random() % 8 == 0 ? kInf : before + 1 + static_cast<float>(random() % 3);
        if (meta.dtype == DType::kF32) {
          images.Set<float>(tensor, element, before, after);
        } else {
          images.Set<uint16_t>(tensor, element, BF16Of(before), BF16Of(after));
        }
        const double difference = std::isfinite(after) ? after - before : 0;
        expected[tensor].Add({1, int{!std::isfinite(after)}, difference * difference, difference});
      }
    }
    const auto all = images.CountAll();
    for (size_t tensor = 0; tensor < expected.size(); ++tensor) {
      CHECK(all[tensor].elements == expected[tensor].elements);
      CHECK(all[tensor].nonfinite == expected[tensor].nonfinite);
      CHECK(all[tensor].squares == expected[tensor].squares);  // of whole numbers: exact in any order
      CHECK(all[tensor].largest == expected[tensor].largest);
    }
  }
}

}  // namespace
}  // namespace lockstep::changes

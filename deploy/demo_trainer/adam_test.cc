#include "deploy/demo_trainer/adam.h"

#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "deploy/demo_trainer/encoding.h"
#include "deploy/demo_trainer/noise.h"

namespace lockstep::demo {
namespace {

constexpr uint32_t kMeanSeed = 11;

class Weights {
 public:
  Weights(size_t count, float sigma) : master_(count), first_(count), second_(count), published_(count) {
    for (uint32_t i = 0; i < count; ++i) master_[i] = sigma * FineNormal(3, i);
  }
  // The share of weights that flipped.
  double Step(uint64_t step, double learning_rate = 1e-6) {
    const AdamStep adam = MakeAdamStep(learning_rate, step, kMeanSeed, 1000 + static_cast<uint32_t>(step));
    const WeightRun run = {master_.data(), first_.data(), second_.data(), 0, master_.size()};
    const uint64_t changed = StepAndEncode(model::DType::kBF16, adam, run, published_.data());
    return static_cast<double>(changed) / static_cast<double>(master_.size());
  }
  std::array<double, 3> DensitiesAtSteps1And8And40() {
    std::array<double, 3> densities{};
    for (uint64_t step = 1; step <= 40; ++step) {
      const double density = Step(step);
      if (step == 1) densities[0] = density;
      if (step == 8) densities[1] = density;
      if (step == 40) densities[2] = density;
    }
    return densities;
  }

  std::vector<float> master_, first_, second_;
  std::vector<uint16_t> published_;
};

// What the kernel is, one weight at a time.
void ReferenceStep(const AdamStep& step, uint32_t index, float& master, float& first, float& second) {
  const float gradient = kMeanGradient * QuickNormal(step.mean_seed, index) + QuickNormal(step.noise_seed, index);
  first = kBeta1 * first + (1.0f - kBeta1) * gradient;
  second = kBeta2 * second + (1.0f - kBeta2) * (gradient * gradient);
  master = master - step.step_size * first / (std::sqrt(second * step.second_correction) + kEpsilon);
}

// The nearer of the two neighbours of `value`, found by comparing distances in double; `Encoding` is only used to
// decode.
template <typename Encoding>
uint16_t NearestByDistance(float value, uint16_t towards_zero) {
  const auto away = static_cast<uint16_t>(towards_zero + 1);
  const double below = std::abs(static_cast<double>(value) - Encoding::Decode(towards_zero));
  double next = Encoding::Decode(away);
  if (std::isinf(next)) {  // the value that would follow if the exponent went on
    next = 2.0 * Encoding::Decode(towards_zero) - Encoding::Decode(static_cast<uint16_t>(towards_zero - 1));
  }
  const double above = std::abs(static_cast<double>(value) - next);
  if (below != above) return below < above ? towards_zero : away;
  return towards_zero % 2 == 0 ? towards_zero : away;
}

std::vector<float> AwkwardFloats() {
  std::vector<float> floats = {0.0f,
                               -0.0f,
                               1.0f,
                               -1.0f,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::min(),
                               std::numeric_limits<float>::denorm_min()};
  std::mt19937 random(5);
  while (floats.size() < 200'000) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(value)) floats.push_back(value);
  }
  return floats;
}

TEST_CASE("The density of flips falls from step to step as in real runs") {
  const std::array<double, 3> densities = Weights(1 << 19, 0.044f).DensitiesAtSteps1And8And40();
  CHECK(densities[0] == Approx(0.0215).epsilon(0.1));
  CHECK(densities[1] == Approx(0.0110).epsilon(0.1));
  CHECK(densities[2] == Approx(0.0088).epsilon(0.1));
}

TEST_CASE("Weights half as large flip twice as often") {
  const std::array<double, 3> densities = Weights(1 << 19, 0.02f).DensitiesAtSteps1And8And40();
  CHECK(densities[0] == Approx(0.041).epsilon(0.05));
  CHECK(densities[1] == Approx(0.0195).epsilon(0.05));
  CHECK(densities[2] == Approx(0.0172).epsilon(0.05));
}

TEST_CASE("A learning rate of zero changes nothing") {
  Weights weights(10'000, 0.02f);
  CHECK(weights.Step(1, 0.0) == 0.0);
}

TEST_CASE("Gradient noise has mean 0 and variance 1") {
  for (const auto& normal : {QuickNormal, FineNormal}) {
    double sum = 0, squares = 0;
    constexpr uint32_t kCount = 1 << 20;
    for (uint32_t i = 0; i < kCount; ++i) {
      sum += normal(77, i);
      squares += normal(77, i) * normal(77, i);
    }
    CHECK(sum / kCount == Approx(0).margin(0.005));
    CHECK(squares / kCount == Approx(1).epsilon(0.005));
  }
}

TEST_CASE("The kernel of this machine equals the scalar formula bit for bit, whatever the length") {
  for (const size_t count : {1, 7, 15, 16, 17, 31, 100, 1001}) {
    Weights weights(count, 0.02f);
    std::vector<float> master = weights.master_, first(count), second(count);
    for (uint64_t step = 1; step <= 3; ++step) {
      weights.Step(step);
      const AdamStep adam = MakeAdamStep(1e-6, step, kMeanSeed, 1000 + static_cast<uint32_t>(step));
      for (size_t i = 0; i < count; ++i) ReferenceStep(adam, static_cast<uint32_t>(i), master[i], first[i], second[i]);
    }
    CHECK(weights.master_ == master);
    CHECK(weights.first_ == first);
    CHECK(weights.second_ == second);
    for (size_t i = 0; i < count; ++i) REQUIRE(weights.published_[i] == BF16::Encode(master[i]));
  }
}

TEST_CASE("Bf16 rounds to the nearest, ties to even") {
  for (const float value : AwkwardFloats()) {
    const auto towards_zero = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    REQUIRE(BF16::Encode(value) == NearestByDistance<BF16>(value, towards_zero));
  }
  CHECK(BF16::Encode(std::bit_cast<float>(0x3f808000u)) == 0x3f80);  // a tie whose even neighbour is below
  CHECK(BF16::Encode(std::bit_cast<float>(0x3f818000u)) == 0x3f82);  // and above
}

TEST_CASE("F16 rounds to the nearest, ties to even, through subnormals and into infinity") {
  for (uint16_t half = 0; half < 0x7c00; ++half) {
    const float low = F16::Decode(half);
    const float high = half == 0x7bff ? 65536.0f : F16::Decode(static_cast<uint16_t>(half + 1));
    const float middle = low + (high - low) / 2;
    for (const float value : {low, std::nextafter(low, high), std::nextafter(middle, low), middle,
                              std::nextafter(middle, high), std::nextafter(high, low)}) {
      REQUIRE(F16::Encode(value) == NearestByDistance<F16>(value, half));
      REQUIRE(F16::Encode(-value) == (NearestByDistance<F16>(value, half) | 0x8000));
    }
  }
  CHECK(F16::Encode(1e30f) == 0x7c00);
  CHECK(F16::Encode(std::numeric_limits<float>::infinity()) == 0x7c00);
  CHECK(std::isnan(F16::Decode(F16::Encode(std::numeric_limits<float>::quiet_NaN()))));
}

TEST_CASE("A NaN stays a NaN") {
  CHECK(BF16::Encode(std::bit_cast<float>(0x7fffffffu)) == 0x7fff);
  CHECK(BF16::Encode(std::bit_cast<float>(0xff800001u)) == 0xffc0);
}

TEST_CASE("Published weights that become masters are published as they were") {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const model::DType dtype : {model::DType::kBF16, model::DType::kF16}) {
    std::vector<float> masters(all.size());
    std::vector<uint16_t> again(all.size());
    Decode(dtype, all.data(), all.size(), 9, 0, masters.data());
    Encode(dtype, masters.data(), masters.size(), again.data());
    for (size_t i = 0; i < all.size(); ++i) {
      if (!std::isnan(masters[i])) REQUIRE(again[i] == all[i]);
    }
  }
}

TEST_CASE(
    "Masters of a bf16 checkpoint lie anywhere in their rounding interval, so that they flip from the first step") {
  Weights drawn(1 << 19, 0.02f);
  Encode(model::DType::kBF16, drawn.master_.data(), drawn.master_.size(), drawn.published_.data());
  Weights loaded(1 << 19, 0.0f);
  Decode(model::DType::kBF16, drawn.published_.data(), drawn.published_.size(), 21, 0, loaded.master_.data());
  CHECK(loaded.Step(1) == Approx(drawn.Step(1)).epsilon(0.05));
}

}  // namespace
}  // namespace lockstep::demo

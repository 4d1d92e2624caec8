// How fast weights are quantised, on one core, against reading them: both go through the same bf16 matrix, a part of a
// derived model at a time, and take turns.
#include <random>
#include <string>

#include "common/base/bytes.h"
#include "kernels/quantise.h"
#include "tests/bench/common/bench.h"
#include "tests/bench/delta/delta_pair.h"

namespace lockstep::bench {
namespace {

constexpr size_t kColumns = 4096;
constexpr size_t kPartRows = 512;  // 4 MiB, as common/derive cuts it

class Bench {
 public:
  explicit Bench(size_t rows)
      : rows_(rows), weights_(rows * kColumns), values_(rows * kColumns), scales_(kPartRows * kColumns / 4) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02f);
    // The bits that fill a whole block at random, over and over.
    std::vector<uint16_t> some(1 << 20);
    for (uint16_t& element : some) element = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] = some[i % some.size()];
  }

  uint64_t bytes() const { return weights_.size() * sizeof(uint16_t); }

  template <typename Quantise>
  void Measure(const std::string& name, int repeats, Quantise quantise) {
    std::vector<double> quantised, read;
    for (int i = 0; i <= repeats; ++i) {
      const double reading = TimeOnce([&] { EachPart([&](const auto& part, uint8_t*) { Read(part); }); });
      const double taken = TimeOnce([&] { EachPart(quantise); });
      if (i == 0) continue;  // memory is warm from here on
      read.push_back(reading);
      quantised.push_back(taken);
    }
    PrintResult(name, "GB/s", bytes(), Throughput(quantised, bytes()), Throughput(read, bytes()));
  }

  std::byte* scales() { return scales_.data(); }

 private:
  template <typename Do>
  void EachPart(Do with) {
    for (size_t row = 0; row < rows_; row += kPartRows) {
      with(kernels::FloatRows{weights_.data() + row * kColumns, kernels::FloatType::kBF16, kPartRows, kColumns},
           values_.data() + row * kColumns);
    }
  }
  void Read(const kernels::FloatRows& part) {
    const auto* const from = static_cast<const std::byte*>(part.data);
    const size_t half = part.rows * part.columns;
    any_ |= ReadBoth(from, from + half, half, Loads::kWide64);
  }

  const size_t rows_;
  std::vector<uint16_t> weights_;
  std::vector<uint8_t> values_;
  Bytes scales_;
  uint64_t any_ = 0;
};

}  // namespace

void Run(bool quick) {
  Bench bench(quick ? 2 * kPartRows : 128 * kPartRows);
  const int repeats = quick ? 2 : 9;
  auto* const scales = bench.scales();
  auto* const floats = reinterpret_cast<float*>(scales);
  auto* const octets = reinterpret_cast<uint8_t*>(scales);
  bench.Measure("quantise_fp8_block", repeats, [&](const auto& part, uint8_t* values) {
    kernels::QuantiseFp8Blocks(part, kernels::BlockScale::kExact, values, floats);
  });
  bench.Measure("quantise_fp8_channel", repeats,
                [&](const auto& part, uint8_t* values) { kernels::QuantiseFp8Rows(part, values, floats); });
  bench.Measure("quantise_fp8_tensor", repeats, [&](const auto& part, uint8_t* values) {
    kernels::QuantiseFp8(part, kernels::Fp8Scale(kernels::AbsMax(part)), values);
  });
  bench.Measure("quantise_mxfp8", repeats,
                [&](const auto& part, uint8_t* values) { kernels::QuantiseMxfp8(part, values, octets); });
  bench.Measure("quantise_nvfp4", repeats, [&](const auto& part, uint8_t* values) {
    kernels::QuantiseNvfp4(part, kernels::Nvfp4GlobalScale(kernels::AbsMax(part)), values, octets);
  });
}

}  // namespace lockstep::bench

#include "tests/bench/adam_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "raas_receiver/placement/rules/test_layouts.h"
#include "tests/bench/or_die.h"

namespace lockstep::bench {
namespace {

constexpr size_t kTile = size_t{1} << 17;  // floats: two tiles stay in a core's cache
constexpr size_t kStretch = 4096;          // elements that take from one place of the tiles
constexpr uint64_t kRowsBytes = 1 << 20;   // what is written together

constexpr float kMomentum = 0.9f;
constexpr float kVariance = 0.999f;
constexpr double kDrift = 0.12;  // spread of elements' mean gradients, in deviations of their noise
constexpr double kTouchedRows = 0.3;
constexpr double kSpreadOfRows = 0.3;
constexpr uint32_t kFrozenEvery = 20;

// The sample that a density is measured on: this many groups of rows, all over the model.
constexpr size_t kSampled = 256;
constexpr uint64_t kSampledRows = 8;

// Splitmix64's finisher over both: the randomness of whatever `key` and `index` name.
uint64_t Mix(uint64_t key, uint64_t index) {
  uint64_t x = key * 0x9e3779b97f4a7c15 + index * 0xd1342543de82ef95 + 0x2545f4914f6cdd1d;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

double Uniform(uint64_t random) {
  return (static_cast<double>(random >> 11) + 0.5) * 0x1p-53;
}

double Normal(uint64_t key, uint64_t index) {
  const uint64_t random = Mix(key, index);
  const double radius = std::sqrt(-2 * std::log(Uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * Uniform(Mix(random, index)));
}

// A tile element's Adam, from its first step on.
struct Element {
  float mean;
  float moment = 0;
  float square = 0;

  float Step(float noise, float moment_share, float square_share) {
    const float gradient = mean + noise;
    moment = kMomentum * moment + (1 - kMomentum) * gradient;
    square = kVariance * square + (1 - kVariance) * gradient * gradient;
    return moment / moment_share / std::sqrt(square / square_share);
  }
};

// The sums of all updates after `first_step` steps, after one more, and so on.
std::vector<std::vector<float>> TrainTile(uint32_t first_step, uint32_t versions) {
  std::vector<Element> elements(kTile);
  for (size_t i = 0; i < kTile; ++i) elements[i].mean = static_cast<float>(kDrift * Normal(1, i));
  std::vector<std::vector<float>> sums;
  std::vector<float> sum(kTile + kStretch);
  for (uint32_t step = 0; step <= first_step + versions; ++step) {
    const float moment_share = 1 - std::pow(kMomentum, static_cast<float>(step));
    const float square_share = 1 - std::pow(kVariance, static_cast<float>(step));
    for (size_t i = 0; i < kTile && step > 0; ++i) {
      sum[i] -= elements[i].Step(static_cast<float>(Normal(1 + step, i)), moment_share, square_share);
    }
    std::copy_n(sum.begin(), kStretch, sum.begin() + kTile);
    if (step >= first_step) sums.push_back(sum);
  }
  return sums;
}

// To nearest, ties to even, like every trainer's cast.
uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Of a weight times 64, as a tensor's own scale would have it; what is below the smallest normal number becomes 0.
uint8_t ToE4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value * 64);
  const uint32_t rounded = ((bits & 0x7fffffff) + 0x7ffff + ((bits >> 20) & 1)) >> 20;
  constexpr uint32_t kBias = (127 - 7) << 3;
  const uint32_t code = rounded < kBias + 8 ? 0 : std::min<uint32_t>(rounded - kBias, 0x7e);
  return static_cast<uint8_t>((bits >> 24 & 0x80) | code);
}

float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

template <typename T, typename Convert>
void Fill(const float* normals, const float* sums, float base, float scale, float rate, size_t count, std::byte* to,
          Convert convert) {
  for (size_t i = 0; i < count; ++i) {
    const T value = convert(FromBf16(ToBf16(base + scale * normals[i])) + rate * sums[i]);
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

uint64_t RowElements(const TensorMeta& tensor) {
  return tensor.shape.empty() ? 1 : tensor.shape.back();
}

}  // namespace

std::shared_ptr<const ModelLayout> QwenLayout(double gigabytes) {
  constexpr double kWhole = 3.04;
  ModelShape model{.family = "qwen3", .hidden = 2048, .ffn = 6144};
  model.vocabulary = std::max<uint64_t>(1000, static_cast<uint64_t>(151'936 * std::min(1.0, gigabytes / kWhole)));
  model.heads = 16;
  model.key_value_heads = 8;
  model.head_dim = 128;
  model.head_norms = true;
  model.tied = true;
  if (gigabytes < 0.2) {
    model.hidden = 512;
    model.ffn = 1536;
  }
  model.layers = 1;
  const auto bytes = [&] { return static_cast<double>(OrDie(LayoutOf(model))->data_bytes()); };
  const double one = bytes();
  model.layers = 2;
  const double layer = bytes() - one;
  model.layers = static_cast<uint64_t>(std::max(2.0, std::round(1 + (gigabytes * 1e9 - one) / layer)));
  return OrDie(LayoutOf(model));
}

AdamModel::AdamModel(std::shared_ptr<const ModelLayout> layout, uint32_t versions, uint32_t first_step)
    : layout_(std::move(layout)), normals_(kTile + kStretch), sums_(TrainTile(first_step, versions)) {
  for (size_t i = 0; i < kTile; ++i) normals_[i] = static_cast<float>(Normal(0, i));
  std::copy_n(normals_.begin(), kStretch, normals_.begin() + kTile);
  for (uint32_t tensor = 0; tensor < layout_->tensors().size(); ++tensor) {
    const uint64_t bytes = layout_->tensor_bytes(tensor);
    if (bytes == 0) continue;
    const TensorMeta& meta = layout_->tensors()[tensor];
    const uint64_t row_bytes = RowElements(meta) * FindDType(meta.dtype)->bits / 8;
    const uint64_t rows = bytes / row_bytes;
    const uint64_t together = std::max<uint64_t>(1, kRowsBytes / row_bytes);
    for (uint64_t row = 0; row < rows; row += together) {
      work_.push_back({tensor, row, std::min(together, rows - row)});
    }
  }
}

void AdamModel::Write(uint32_t version, double learning_rate, std::span<std::byte> data, WorkerPool& pool) const {
  pool.ParallelFor(work_.size(), [&](size_t i) {
    const Rows& rows = work_[i];
    const TensorMeta& tensor = layout_->tensors()[rows.tensor];
    const uint64_t row_bytes = RowElements(tensor) * FindDType(tensor.dtype)->bits / 8;
    WriteRows(rows, version, learning_rate, data.data() + tensor.offset + rows.first * row_bytes);
  });
}

double AdamModel::LearningRateFor(double density) const {
  std::vector<Rows> sample;
  for (size_t i = 0; i < kSampled; ++i) {
    sample.push_back(work_[i * work_.size() / kSampled]);
    sample.back().count = std::min<uint64_t>(sample.back().count, kSampledRows);
  }
  double low = 1e-10;
  double high = 1;
  for (int i = 0; i < 24; ++i) {
    const double middle = std::sqrt(low * high);
    (DensityOf(sample, middle) < density ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

double AdamModel::DensityOf(std::span<const Rows> sample, double learning_rate) const {
  std::vector<std::byte> before;
  std::vector<std::byte> after;
  double changed = 0;
  double elements = 0;
  for (const Rows& rows : sample) {
    const TensorMeta& tensor = layout_->tensors()[rows.tensor];
    const uint64_t unit = FindDType(tensor.dtype)->bits / 8;
    const uint64_t bytes = rows.count * RowElements(tensor) * unit;
    before.resize(bytes);
    after.resize(bytes);
    WriteRows(rows, 0, learning_rate, before.data());
    WriteRows(rows, 1, learning_rate, after.data());
    for (uint64_t at = 0; at < bytes; at += unit) changed += std::memcmp(&before[at], &after[at], unit) != 0;
    elements += static_cast<double>(bytes / unit);
  }
  return changed / elements;
}

void AdamModel::WriteRows(const Rows& rows, uint32_t version, double learning_rate, std::byte* to) const {
  const TensorMeta& tensor = layout_->tensors()[rows.tensor];
  const uint64_t row_bytes = RowElements(tensor) * FindDType(tensor.dtype)->bits / 8;
  for (uint64_t row = 0; row < rows.count; ++row) {
    WriteRow(rows.tensor, rows.first + row, version, learning_rate, to + row * row_bytes);
  }
}

void AdamModel::WriteRow(uint32_t tensor, uint64_t row, uint32_t version, double learning_rate, std::byte* to) const {
  const TensorMeta& meta = layout_->tensors()[tensor];
  const bool norm = meta.name.find("norm") != std::string::npos;
  const bool embedding = meta.name.find("embed_tokens") != std::string::npos;
  const uint64_t key = Mix(1'000'000 + tensor, row);
  const bool still = embedding ? Uniform(key) > kTouchedRows : tensor % kFrozenEvery == kFrozenEvery / 2;
  const double of_tensor = 0.01 * std::pow(5.0, Uniform(Mix(2'000'000, tensor)));
  const auto scale = static_cast<float>(of_tensor * std::exp(kSpreadOfRows * Normal(key, 0)));
  const float rate = still ? 0.0f : static_cast<float>(learning_rate);
  const float base = norm ? 1.0f : 0.0f;
  const uint32_t unit = FindDType(meta.dtype)->bits / 8;
  const uint64_t elements = RowElements(meta);
  for (uint64_t at = 0; at < elements; at += kStretch) {
    const size_t count = std::min<uint64_t>(kStretch, elements - at);
    const float* normals = normals_.data() + Mix(key, 2 * at) % kTile;
    const float* sums = sums_[version].data() + Mix(key, 2 * at + 1) % kTile;
    std::byte* here = to + at * unit;
    if (meta.dtype == DType::kBF16) {
      Fill<uint16_t>(normals, sums, base, scale, rate, count, here, ToBf16);
    } else if (meta.dtype == DType::kF32) {
      Fill<float>(normals, sums, base, scale, rate, count, here, [](float value) { return value; });
    } else {
      Fill<uint8_t>(normals, sums, base, scale, rate, count, here, ToE4m3);
    }
  }
}

}  // namespace lockstep::bench

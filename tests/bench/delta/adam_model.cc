#include "tests/bench/delta/adam_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace lockstep::bench {
namespace {

constexpr size_t kTile = size_t{1} << 17;  // floats: two tiles stay in a core's cache
constexpr size_t kPart = 4096;             // elements of a row that take from one place of the tiles
constexpr uint64_t kRowsBytes = 1 << 20;   // what is written together

constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kEpsilon = 1e-8f;
constexpr float kMeanGradient = 0.12f;  // of each weight, beside noise of deviation 1 that is new in each step
constexpr double kTouchedRows = 0.3;
constexpr float kSpreadOfRows = 0.3f;
constexpr uint32_t kFrozenEvery = 20;

// What a random number is for; noise has a seed of its own for each step.
enum Seed : uint32_t { kWeights = 1, kRows, kScales, kTouched, kMeans, kNoise, kSample };

// The sample that a density is measured on: this many groups of rows, all over the model, of as many elements each.
constexpr size_t kSampled = 256;
constexpr uint64_t kSampledElements = 16'384;

// Random numbers that are a function of where they are used. Every output bit depends on every input bit (a 32-bit
// xor-shift-multiply finalizer).
uint32_t HashAt(uint32_t seed, uint32_t index) {
  uint32_t x = (index * 0x9e3779b1u) ^ seed;
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0xd35a2d97u;
  return x ^ (x >> 15);
}

// Near enough to normal: a sum of four uniforms, of mean 0 and variance 1, fine to the last bit of a float.
float Normal(uint32_t seed, uint32_t index) {
  int32_t sum = 0;
  for (uint32_t draw = 0; draw < 4; ++draw) sum += static_cast<int32_t>(HashAt(seed + draw * 0x632be5abu, index) >> 8);
  constexpr float kScale = 1.0f / 9686330.0f;  // sqrt(4 / 12) * 2^24
  return static_cast<float>(sum - (1 << 25)) * kScale;
}

// In [0, 1).
float Uniform(uint32_t seed, uint32_t index) {
  return static_cast<float>(static_cast<int32_t>(HashAt(seed, index) >> 8)) * (1.0f / (1 << 24));
}

// To nearest, ties to even; `value` is finite.
uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The sums of all updates after `first_step` steps, and after one more: what weights become that start at 0 and train
// at a learning rate of 1.
std::vector<std::vector<float>> TrainTile(uint32_t first_step) {
  std::vector<float> sum(kTile + kPart), first_moment(kTile), second_moment(kTile);
  std::vector<std::vector<float>> sums;
  for (uint32_t step = 0; step <= first_step + 1; ++step) {
    const auto first_correction = static_cast<float>(1 / (1 - std::pow(kBeta1, step)));
    const auto second_correction = static_cast<float>(1 / (1 - std::pow(kBeta2, step)));
    for (uint32_t i = 0; step > 0 && i < kTile; ++i) {
      const float gradient = kMeanGradient * Normal(HashAt(kMeans, 0), i) + Normal(HashAt(kNoise, step), i);
      first_moment[i] = kBeta1 * first_moment[i] + (1 - kBeta1) * gradient;
      second_moment[i] = kBeta2 * second_moment[i] + (1 - kBeta2) * gradient * gradient;
      sum[i] -= first_correction * first_moment[i] / (std::sqrt(second_moment[i] * second_correction) + kEpsilon);
    }
    std::copy_n(sum.begin(), kPart, sum.begin() + kTile);
    if (step >= first_step) sums.push_back(sum);
  }
  return sums;
}

uint64_t RowElements(const model::TensorMeta& tensor) {
  return tensor.shape.empty() ? 1 : tensor.shape.back();
}

}  // namespace

AdamModel::AdamModel(std::shared_ptr<const model::ModelLayout> layout, uint32_t first_step)
    : layout_(std::move(layout)), normals_(kTile + kPart), sums_(TrainTile(first_step)) {
  for (uint32_t i = 0; i < kTile; ++i) normals_[i] = Normal(kWeights, i);
  std::copy_n(normals_.begin(), kPart, normals_.begin() + kTile);
  for (uint32_t tensor = 0; tensor < layout_->tensors().size(); ++tensor) {
    const uint64_t bytes = layout_->tensor_bytes(tensor);
    if (bytes == 0) continue;
    const model::TensorMeta& meta = layout_->tensors()[tensor];
    const uint64_t row_bytes = 2 * RowElements(meta);
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
    const model::TensorMeta& tensor = layout_->tensors()[rows.tensor];
    auto* const first = reinterpret_cast<uint16_t*>(data.data() + tensor.offset);
    WriteRows(rows, version, learning_rate, first + rows.first * RowElements(tensor));
  });
}

double AdamModel::LearningRateFor(double density) const {
  std::vector<Rows> sample;
  for (uint32_t i = 0; i < kSampled; ++i) {
    Rows rows = work_[i * work_.size() / kSampled];
    const uint64_t wanted = kSampledElements / RowElements(layout_->tensors()[rows.tensor]);
    const uint64_t count = std::clamp<uint64_t>(wanted, 1, rows.count);
    rows.first += HashAt(kSample, i) % (rows.count - count + 1);
    rows.count = count;
    sample.push_back(rows);
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
  std::vector<uint16_t> before, after;
  double changed = 0;
  double elements = 0;
  for (const Rows& rows : sample) {
    before.resize(rows.count * RowElements(layout_->tensors()[rows.tensor]));
    after.resize(before.size());
    WriteRows(rows, 0, learning_rate, before.data());
    WriteRows(rows, 1, learning_rate, after.data());
    for (size_t i = 0; i < before.size(); ++i) changed += before[i] != after[i];
    elements += static_cast<double>(before.size());
  }
  return changed / elements;
}

void AdamModel::WriteRows(const Rows& rows, uint32_t version, double learning_rate, uint16_t* to) const {
  const uint64_t elements = RowElements(layout_->tensors()[rows.tensor]);
  for (uint64_t row = 0; row < rows.count; ++row) {
    WriteRow(rows.tensor, rows.first + row, version, learning_rate, to + row * elements);
  }
}

void AdamModel::WriteRow(uint32_t tensor, uint64_t row, uint32_t version, double learning_rate, uint16_t* to) const {
  const model::TensorMeta& meta = layout_->tensors()[tensor];
  const bool norm = meta.name.find("norm") != std::string::npos;
  const bool embedding = meta.name.find("embed_tokens") != std::string::npos;
  const uint32_t key = HashAt(HashAt(kRows, tensor), static_cast<uint32_t>(row));
  const bool still = embedding ? Uniform(kTouched, key) > kTouchedRows : tensor % kFrozenEvery == kFrozenEvery / 2;
  const float of_tensor = 0.01f * std::pow(5.0f, Uniform(kScales, tensor));
  const float scale = of_tensor * std::exp(kSpreadOfRows * Normal(key, 0));
  const float rate = still ? 0.0f : static_cast<float>(learning_rate);
  const float base = norm ? 1.0f : 0.0f;
  const uint64_t elements = RowElements(meta);
  for (uint64_t at = 0; at < elements; at += kPart) {
    const auto place = static_cast<uint32_t>(2 * at);
    const float* normals = normals_.data() + HashAt(key, place) % kTile;
    const float* sums = sums_[version].data() + HashAt(key, place + 1) % kTile;
    for (size_t i = 0; i < std::min<uint64_t>(kPart, elements - at); ++i) {
      to[at + i] = ToBf16(FromBf16(ToBf16(base + scale * normals[i])) + rate * sums[i]);
    }
  }
}

}  // namespace lockstep::bench

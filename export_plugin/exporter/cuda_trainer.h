// A trainer whose weights, on the stand-in's GPUs, change as little as a test wants.
#pragma once

#include <random>

#include "export_plugin/exporter/cuda_testing.h"
#include "export_plugin/exporter/exporter_fixture.h"
#include "kernels/copy_rows.h"

namespace lockstep::exporter {

// Two ranks, each with its shards on a GPU of its own; what changes from step to step is up to the test. `masters`:
// BF16 tensors are F32 on the ranks.
class Trainer {
 public:
  Trainer(std::vector<Whole2D> model, bool masters, uint64_t seed, FleetOptions options = {})
      : model_(std::move(model)), masters_(masters), random_(seed) {
    options.fills = [this](uint32_t rank) { Upload(rank); };
    for (const Whole2D& tensor : model_) {
      auto& elements = whole_.emplace_back(tensor.rows * tensor.columns);
      for (uint32_t& element : elements) element = static_cast<uint32_t>(random_());
    }
    fleet_ = std::make_unique<Fleet>(model_, std::move(options));
    for (uint32_t rank = 0; rank < kRanks; ++rank) Place(rank);
  }
  ~Trainer() {
    fleet_.reset();
    CHECK(cuda::Count().streams == 0);
    CHECK(cuda::Count().host_allocations == 0);
    CHECK(cuda::Count().registered_ranges == 0);
    CHECK(cuda::Violations().empty());
  }

  void Open(bool shadow) {
    fleet_->Open();
    shadow_ = shadow;
    for (uint32_t rank = 0; rank < kRanks && shadow; ++rank) UseShadow(rank);
  }
  void Replace(uint32_t rank) {
    fleet_->Replace(rank);
    if (shadow_) UseShadow(rank);
  }

  // Gives so many of all elements other bits, some of them those of a NaN.
  void Train(double density) {
    if (density == 0) return;
    std::geometric_distribution<size_t> unchanged(std::min(density, 0.999));
    std::bernoulli_distribution nan(0.1);
    for (size_t i = 0; i < model_.size(); ++i) {
      if (model_[i].frozen) continue;
      for (size_t at = unchanged(random_); at < whole_[i].size(); at += 1 + unchanged(random_)) {
        whole_[i][at] = static_cast<uint32_t>(random_()) | (nan(random_) ? 0x7fc0'7fc0 : 0);
      }
    }
  }

  // What has to be served of the tensors as they are.
  Image Expected() const {
    Image image;
    for (size_t i = 0; i < model_.size(); ++i) {
      auto into = model_[i].into;
      if (into.empty()) into = {{model_[i].name, model_[i].rows}};
      size_t element = 0;
      const uint64_t bytes = BytesOf(model_[i].dtype);
      for (const auto& [name, rows] : into) {
        image[name].resize(rows * model_[i].columns * bytes);
        for (std::byte* at = image[name].data(); at < image[name].data() + image[name].size(); at += bytes) {
          uint32_t bits = whole_[i][element++];
          if (Rounds(i)) kernels::CopyRowsF32ToBF16(&bits, 0, &whole_[i][element - 1], 0, 1, 1);
          std::memcpy(at, &bits, bytes);
        }
      }
    }
    return image;
  }

  void Publish(Version version) {
    fleet_->Publish(version);
    Check(version, Expected());
  }
  void Check(Version version, const Image& expected) {
    const Image served = fleet_->Served(version);
    for (const auto& [name, bytes] : expected) {
      INFO("version " << version << ", tensor " << name);
      REQUIRE(served.at(name) == bytes);
    }
  }

  Fleet& fleet() { return *fleet_; }

 private:
  static constexpr uint32_t kRanks = 2;

  bool Rounds(size_t tensor) const { return masters_ && model_[tensor].dtype == model::DType::kBF16; }
  uint64_t ElementBytes(size_t tensor) const { return Rounds(tensor) ? 4 : BytesOf(model_[tensor].dtype); }

  void Place(uint32_t rank) {
    TestRank& its = fleet_->rank(rank);
    for (size_t i = 0; i < its.locals.size(); ++i) {
      its.locals[i].address = OnGpu(static_cast<int>(rank), Memory(its.memory[i].size() * (Rounds(i) ? 2 : 1)));
      if (!Rounds(i)) continue;
      its.locals[i].dtype = model::DType::kF32;
      its.locals[i].convert = true;
    }
  }

  void UseShadow(uint32_t rank) {
    const Status status = fleet_->exporter(rank).UseShadow();
    INFO(status.ToString());
    REQUIRE(status.ok());
    CHECK(fleet_->exporter(rank).has_shadow());
  }

  void Upload(uint32_t rank) {
    const TestRank& its = fleet_->rank(rank);
    for (size_t i = 0; i < its.locals.size(); ++i) {
      const layout::Piece& box = its.boxes[i];
      Memory bytes(box.size[0] * box.size[1] * ElementBytes(i));
      std::byte* to = bytes.data();
      for (uint64_t row = 0; row < box.size[0]; ++row) {
        const uint32_t* from = &whole_[i][(box.target[0] + row) * model_[i].columns + box.target[1]];
        for (uint64_t column = 0; column < box.size[1]; ++column, to += ElementBytes(i)) {
          std::memcpy(to, from + column, ElementBytes(i));
        }
      }
      cuda::Write(const_cast<void*>(its.locals[i].address), bytes);
    }
  }

  const std::vector<Whole2D> model_;
  const bool masters_;
  bool shadow_ = false;
  std::mt19937_64 random_;
  std::vector<std::vector<uint32_t>> whole_;  // each tensor's elements, their bits from the lowest
  std::unique_ptr<Fleet> fleet_;
};

// Shards of every kind, of sizes that are no multiple of anything.
inline std::vector<Whole2D> Shards() {
  return {{"embed", model::DType::kBF16, 66, 31, Cut::kRows},
          {"qkv", model::DType::kBF16, 96, 64, Cut::kRows, false, {{"q", 48}, {"k", 24}, {"v", 24}}},
          {"o", model::DType::kBF16, 61, 130, Cut::kColumns},
          {"norm", model::DType::kF32, 1, 67, Cut::kNone},
          {"base", model::DType::kBF16, 16, 128, Cut::kNone, true},
          {"head", model::DType::kBF16, 33, 34, Cut::kColumns}};
}

}  // namespace lockstep::exporter

#include "deploy/demo_trainer/trainer.h"

#include <openssl/sha.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>

namespace lockstep::demo {
namespace {

constexpr Qwen3Shape kSmall{"small", 64, 12, 4, 2, 16, 192, 4096};

InitialModel SmallModel() {
  return *ModelOfShape(kSmall);
}

// A trainer and the memory it publishes to, checking that every pass reports every byte once.
class TrainerRun {
 public:
  explicit TrainerRun(InitialModel model, TrainerOptions options = {})
      : trainer_(*Trainer::Create(std::move(model), options)), data_(trainer_->layout().data_bytes()) {
    REQUIRE(trainer_->PublishInitial(data_.data(), Tiling()).ok());
    RequireAllReported();
  }
  uint64_t Step() {
    const Result<uint64_t> changed = trainer_->StepAndPublish(data_.data(), Tiling());
    REQUIRE(changed.ok());
    RequireAllReported();
    return *changed;
  }
  const Bytes& data() const { return data_; }
  Trainer& trainer() { return *trainer_; }

 private:
  Trainer::RangeDone Tiling() {
    reported_ = 0;
    return [this](ByteRange range) {
      REQUIRE(range.offset == reported_);
      reported_ = range.end();
      return OkStatus();
    };
  }
  void RequireAllReported() const { REQUIRE(reported_ == data_.size()); }

  std::unique_ptr<Trainer> trainer_;
  Bytes data_;
  uint64_t reported_ = 0;
};

ByteView TensorOf(const Bytes& data, const model::ModelLayout& layout, size_t tensor) {
  return ByteView(data).subspan(layout.tensors()[tensor].offset, layout.tensor_bytes(tensor));
}

uint64_t CountChanged(const Bytes& before, const Bytes& after) {
  uint64_t changed = 0;
  for (size_t i = 0; i < before.size(); i += 2) changed += std::memcmp(&before[i], &after[i], 2) != 0 ? 1 : 0;
  return changed;
}

TEST_CASE("The trainer counts exactly the elements that a comparison of two publications finds") {
  TrainerRun run(SmallModel());
  for (int step = 0; step < 3; ++step) {
    const Bytes before = run.data();
    const uint64_t changed = run.Step();
    CHECK(changed > 0);
    CHECK(changed == CountChanged(before, run.data()));
  }
}

TEST_CASE("The digest is that of the published bytes, and not taken from them") {
  TrainerRun run(SmallModel());
  run.Step();
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const uint8_t*>(run.data().data()), run.data().size(), digest.data());
  CHECK(run.trainer().Digest() == HexEncode(digest));
}

TEST_CASE("A run depends on its seed and not on the number of threads") {
  TrainerRun one(SmallModel(), {.seed = 4, .threads = 1});
  TrainerRun three(SmallModel(), {.seed = 4, .threads = 3});
  TrainerRun other(SmallModel(), {.seed = 5, .threads = 1});
  for (int step = 0; step < 2; ++step) CHECK(one.Step() == three.Step());
  CHECK(one.data() == three.data());
  CHECK(one.data() != other.data());
}

TEST_CASE("Some tensors stay frozen, and of an embedding most rows are left alone") {
  TrainerRun run(SmallModel(), {.learning_rate = 1e-4});
  const Bytes before = run.data();
  run.Step();
  const model::ModelLayout& layout = run.trainer().layout();
  size_t frozen_matrices = 0;
  for (size_t i = 1; i < layout.tensors().size(); ++i) {
    if (layout.tensors()[i].shape.size() < 2) continue;
    const ByteView old_bytes = TensorOf(before, layout, i), new_bytes = TensorOf(run.data(), layout, i);
    frozen_matrices += std::ranges::equal(old_bytes, new_bytes) ? 1 : 0;
  }
  CHECK(frozen_matrices >= 1);
  CHECK(frozen_matrices <= layout.tensors().size() / 6);

  REQUIRE(layout.tensors()[0].name == "model.embed_tokens.weight");
  uint64_t touched = 0;
  for (uint64_t row = 0; row < kSmall.vocabulary; ++row) {
    const size_t at = row * kSmall.hidden * 2;
    touched += std::memcmp(&before[at], &run.data()[at], kSmall.hidden * 2) != 0 ? 1 : 0;
  }
  CHECK(touched > kSmall.vocabulary / 10);
  CHECK(touched < kSmall.vocabulary / 6);
}

TEST_CASE("The shapes' density is that of real runs") {
  TrainerRun run(*ModelOfShape(*FindShape("tiny")), {.threads = 2});
  const auto density = [&](uint64_t changed) {
    return static_cast<double>(changed) / static_cast<double>(run.trainer().elements());
  };
  const double first = density(run.Step());
  for (int step = 2; step < 8; ++step) run.Step();
  const double eighth = density(run.Step());
  CHECK(first > 0.015);
  CHECK(first < 0.03);
  CHECK(eighth > 0.007);
  CHECK(eighth < 0.015);
}

TEST_CASE("A checkpoint is published as it is, then trained; what is no float is carried") {
  std::vector<model::TensorMeta> tensors = {{.name = "w", .dtype = model::DType::kBF16, .shape = {300, 100}},
                                            {.name = "half", .dtype = model::DType::kF16, .shape = {500}},
                                            {.name = "table", .dtype = model::DType::kI8, .shape = {3, 33}},
                                            {.name = "none", .dtype = model::DType::kBF16, .shape = {0, 7}},
                                            {.name = "scalar", .dtype = model::DType::kF32, .shape = {}}};
  REQUIRE(model::AssignOffsets(tensors).ok());
  InitialModel model{.layout = *model::ModelLayout::Create(tensors)};
  Bytes checkpoint(model.layout->data_bytes());
  for (size_t i = 0; i < checkpoint.size(); ++i) checkpoint[i] = static_cast<std::byte>(i % 2 == 0 ? i * 37 : 0x3c);
  for (size_t i = 0; i < tensors.size(); ++i) model.values.push_back(TensorOf(checkpoint, *model.layout, i));

  TrainerRun run(std::move(model), {.learning_rate = 1e-3, .seed = 3});  // which freezes none of the five
  CHECK(run.data() == checkpoint);
  CHECK(run.Step() > 0);
  const model::ModelLayout& layout = run.trainer().layout();
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const bool same = std::ranges::equal(TensorOf(checkpoint, layout, i), TensorOf(run.data(), layout, i));
    const std::string& name = layout.tensors()[i].name;
    CAPTURE(name);
    CHECK(same == (name == "table" || name == "none"));
  }
}

TEST_CASE("An error of the callback for finished ranges ends the pass") {
  const std::unique_ptr<Trainer> trainer = *Trainer::Create(SmallModel(), {});
  Bytes data(trainer->layout().data_bytes());
  const Status status =
      trainer->PublishInitial(data.data(), [](ByteRange) { return Status(ErrorCode::kUnavailable, "gone"); });
  CHECK(status.code() == ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace lockstep::demo

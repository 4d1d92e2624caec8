#include "deploy/demo_trainer/trainer.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "deploy/demo_trainer/sha256.h"
#include "deploy/demo_trainer/shapes.h"

namespace lockstep::demo {
namespace {

constexpr Qwen3Shape kSmall{"small", 64, 12, 4, 2, 16, 192, 4096};

InitialModel SmallModel() {
  return *ModelOfShape(kSmall);
}

// A trainer and the memory it publishes to, checking that every pass tells every byte once.
class Session {
 public:
  explicit Session(InitialModel model, TrainerOptions options = {})
      : trainer_(*Trainer::Create(std::move(model), options)), data_(trainer_->layout().data_bytes()) {
    REQUIRE(trainer_->PublishInitial(data_.data(), Tiling()).ok());
    RequireAllTold();
  }
  uint64_t Step() {
    const Result<uint64_t> changed = trainer_->StepAndPublish(data_.data(), Tiling());
    REQUIRE(changed.ok());
    RequireAllTold();
    return *changed;
  }
  const Bytes& data() const { return data_; }
  Trainer& trainer() { return *trainer_; }

 private:
  Trainer::RangeDone Tiling() {
    told_ = 0;
    return [this](ByteRange range) {
      REQUIRE(range.offset == told_);
      told_ = range.end();
      return OkStatus();
    };
  }
  void RequireAllTold() const { REQUIRE(told_ == data_.size()); }

  std::unique_ptr<Trainer> trainer_;
  Bytes data_;
  uint64_t told_ = 0;
};

ByteView TensorOf(const Bytes& data, const ModelLayout& layout, size_t tensor) {
  return ByteView(data).subspan(layout.tensors()[tensor].offset, layout.tensor_bytes(tensor));
}

uint64_t CountChanged(const Bytes& before, const Bytes& after) {
  uint64_t changed = 0;
  for (size_t i = 0; i < before.size(); i += 2) changed += std::memcmp(&before[i], &after[i], 2) != 0 ? 1 : 0;
  return changed;
}

TEST_CASE("the trainer counts exactly the elements that a comparison of two publications finds") {
  Session session(SmallModel());
  for (int step = 0; step < 3; ++step) {
    const Bytes before = session.data();
    const uint64_t changed = session.Step();
    CHECK(changed > 0);
    CHECK(changed == CountChanged(before, session.data()));
  }
}

TEST_CASE("the digest is that of the published bytes, and not taken from them") {
  Session session(SmallModel());
  session.Step();
  Sha256 sha256;
  sha256.Update(session.data());
  CHECK(session.trainer().Digest() == sha256.FinishHex());
  CHECK(sha256.FinishHex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");  // of nothing
}

TEST_CASE("a run depends on its seed and not on the number of threads") {
  Session one(SmallModel(), {.seed = 4, .threads = 1});
  Session three(SmallModel(), {.seed = 4, .threads = 3});
  Session other(SmallModel(), {.seed = 5, .threads = 1});
  for (int step = 0; step < 2; ++step) CHECK(one.Step() == three.Step());
  CHECK(one.data() == three.data());
  CHECK(one.data() != other.data());
}

TEST_CASE("some tensors stay frozen, and of an embedding most rows are left alone") {
  Session session(SmallModel(), {.learning_rate = 1e-4});
  const Bytes before = session.data();
  session.Step();
  const ModelLayout& layout = session.trainer().layout();
  size_t frozen_matrices = 0;
  for (size_t i = 1; i < layout.tensors().size(); ++i) {
    if (layout.tensors()[i].shape.size() < 2) continue;
    const ByteView old_bytes = TensorOf(before, layout, i), new_bytes = TensorOf(session.data(), layout, i);
    frozen_matrices += std::ranges::equal(old_bytes, new_bytes) ? 1 : 0;
  }
  CHECK(frozen_matrices >= 1);
  CHECK(frozen_matrices <= layout.tensors().size() / 6);

  REQUIRE(layout.tensors()[0].name == "model.embed_tokens.weight");
  uint64_t touched = 0;
  for (uint64_t row = 0; row < kSmall.vocabulary; ++row) {
    const size_t at = row * kSmall.hidden * 2;
    touched += std::memcmp(&before[at], &session.data()[at], kSmall.hidden * 2) != 0 ? 1 : 0;
  }
  CHECK(touched > kSmall.vocabulary / 10);
  CHECK(touched < kSmall.vocabulary / 6);
}

TEST_CASE("the shapes' density is that of real runs") {
  Session session(*ModelOfShape(*FindShape("tiny")), {.threads = 2});
  const auto density = [&](uint64_t changed) {
    return static_cast<double>(changed) / static_cast<double>(session.trainer().elements());
  };
  const double first = density(session.Step());
  for (int step = 2; step < 8; ++step) session.Step();
  const double eighth = density(session.Step());
  CHECK(first > 0.015);
  CHECK(first < 0.03);
  CHECK(eighth > 0.007);
  CHECK(eighth < 0.015);
}

TEST_CASE("a checkpoint is published as it is, then trained; what is no float is carried") {
  std::vector<TensorMeta> tensors = {{.name = "w", .dtype = DType::kBF16, .shape = {300, 100}},
                                     {.name = "half", .dtype = DType::kF16, .shape = {500}},
                                     {.name = "table", .dtype = DType::kI8, .shape = {3, 33}},
                                     {.name = "none", .dtype = DType::kBF16, .shape = {0, 7}},
                                     {.name = "scalar", .dtype = DType::kF32, .shape = {}}};
  REQUIRE(AssignOffsets(tensors).ok());
  InitialModel model{.layout = *ModelLayout::Create(tensors)};
  Bytes checkpoint(model.layout->data_bytes());
  for (size_t i = 0; i < checkpoint.size(); ++i) checkpoint[i] = static_cast<std::byte>(i % 2 == 0 ? i * 37 : 0x3c);
  for (size_t i = 0; i < tensors.size(); ++i) model.values.push_back(TensorOf(checkpoint, *model.layout, i));

  Session session(std::move(model), {.learning_rate = 1e-3, .seed = 3});  // which freezes none of the five
  CHECK(session.data() == checkpoint);
  CHECK(session.Step() > 0);
  const ModelLayout& layout = session.trainer().layout();
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const bool same = std::ranges::equal(TensorOf(checkpoint, layout, i), TensorOf(session.data(), layout, i));
    const std::string& name = layout.tensors()[i].name;
    CAPTURE(name);
    CHECK(same == (name == "table" || name == "none"));
  }
}

TEST_CASE("an error of whoever is told about ranges ends the pass") {
  const std::unique_ptr<Trainer> trainer = *Trainer::Create(SmallModel(), {});
  Bytes data(trainer->layout().data_bytes());
  const Status status =
      trainer->PublishInitial(data.data(), [](ByteRange) { return Status(ErrorCode::kUnavailable, "gone"); });
  CHECK(status.code() == ErrorCode::kUnavailable);
}

TEST_CASE("more memory than the machine has is refused with both figures") {
  const Status status = CheckMemoryAvailable(uint64_t{1} << 60, "dreams");
  CHECK(status.code() == ErrorCode::kResourceExhausted);
  CHECK_THAT(status.message(), Catch::Contains("dreams need"));
  CHECK(ExitCode(status.code()) == 71);
  CHECK(CheckMemoryAvailable(1, "little").ok());
}

}  // namespace
}  // namespace lockstep::demo

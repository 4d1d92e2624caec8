// Versions of tensors on GPUs that fail at every step, against the trainer's tensors.
#include <random>

#include "export_plugin/exporter/cuda_testing.h"
#include "export_plugin/exporter/exporter_fixture.h"
#include "kernels/copy_rows.h"

namespace lockstep::exporter {
namespace {

// Shards of every kind, of sizes that are no multiple of anything.
std::vector<Whole2D> Shards() {
  return {{"embed", model::DType::kBF16, 66, 31, Cut::kRows},
          {"qkv", model::DType::kBF16, 96, 64, Cut::kRows, false, {{"q", 48}, {"k", 24}, {"v", 24}}},
          {"o", model::DType::kBF16, 61, 130, Cut::kColumns},
          {"norm", model::DType::kF32, 1, 67, Cut::kNone},
          {"base", model::DType::kBF16, 16, 128, Cut::kNone, true},
          {"head", model::DType::kBF16, 33, 34, Cut::kColumns}};
}

// Two ranks, each with its shards on one of the stand-in's GPUs. `masters`: BF16 tensors are F32 on the ranks.
class Trainer {
 public:
  Trainer(bool masters, uint64_t seed) : model_(Shards()), masters_(masters), random_(seed) {
    for (const Whole2D& tensor : model_) {
      auto& elements = whole_.emplace_back(tensor.rows * tensor.columns);
      for (uint32_t& element : elements) element = static_cast<uint32_t>(random_());
    }
    fleet_ = std::make_unique<Fleet>(model_, FleetOptions{.fills = [this](uint32_t rank) { Upload(rank); }});
    for (uint32_t rank = 0; rank < kRanks; ++rank) Place(rank);
    fleet_->Open();
  }
  ~Trainer() {
    fleet_.reset();
    CHECK(cuda::Count().streams == 0);
    CHECK(cuda::Count().host_allocations == 0);
    CHECK(cuda::Count().registered_ranges == 0);
    CHECK(cuda::Violations().empty());
  }

  // Gives one element in a hundred other bits, some of them those of a NaN.
  void Train() {
    std::geometric_distribution<size_t> unchanged(0.01);
    std::bernoulli_distribution nan(0.1);
    for (size_t i = 0; i < model_.size(); ++i) {
      if (model_[i].frozen) continue;
      for (size_t at = unchanged(random_); at < whole_[i].size(); at += 1 + unchanged(random_)) {
        whole_[i][at] = static_cast<uint32_t>(random_()) | (nan(random_) ? 0x7fc0'7fc0 : 0);
      }
    }
  }

  // `version` is served, with the tensors as they are.
  void Check(Version version) {
    const Image served = fleet_->Served(version);
    for (const auto& [name, bytes] : Expected()) {
      INFO("version " << version << ", tensor " << name);
      REQUIRE(served.at(name) == bytes);
    }
  }

  Fleet& fleet() { return *fleet_; }

 private:
  static constexpr uint32_t kRanks = 2;

  bool Rounds(size_t tensor) const { return masters_ && model_[tensor].dtype == model::DType::kBF16; }
  uint64_t ElementBytes(size_t tensor) const { return Rounds(tensor) ? 4 : BytesOf(model_[tensor].dtype); }

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

  void Place(uint32_t rank) {
    TestRank& its = fleet_->rank(rank);
    for (size_t i = 0; i < its.locals.size(); ++i) {
      its.locals[i].address = OnGpu(static_cast<int>(rank), Memory(its.memory[i].size() * (Rounds(i) ? 2 : 1)));
      if (!Rounds(i)) continue;
      its.locals[i].dtype = model::DType::kF32;
      its.locals[i].convert = true;
    }
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
  std::mt19937_64 random_;
  std::vector<std::vector<uint32_t>> whole_;  // each tensor's elements, their bits from the lowest
  std::unique_ptr<Fleet> fleet_;
};

// A trainer with versions that fail. However they end, the next served version has the bytes of the tensors.
class Troubled {
 public:
  Troubled(bool masters, uint64_t seed) : random_(seed), trainer_(masters, seed) {}

  // Whether all ranks published. A failed version may be tried again with other bytes, unless its number is taken: a
  // rank may fail after its part was in the version.
  bool Publish(std::map<uint32_t, Version> versions = {}) {
    trainer_.Train();
    if (!again_) ++version_;
    const std::vector<Status> outcomes = trainer_.fleet().TryPublish(version_, std::move(versions));
    const bool whole = std::all_of(outcomes.begin(), outcomes.end(), [](const Status& status) { return status.ok(); });
    const bool taken = std::any_of(outcomes.begin(), outcomes.end(),
                                   [](const Status& status) { return status.code() == ErrorCode::kState; });
    again_ = !whole && !taken && Chance(2);
    failures_.clear();
    for (const Status& status : outcomes) failures_ += status.ToString() + "; ";
    return whole;
  }

  // A version in each slot.
  void Settle() {
    for (int slot = 0; slot < 2; ++slot) {
      int tries = 0;
      while (!Publish()) {
        INFO("version " << version_ << ": " << failures_);
        REQUIRE(++tries < 5);
      }
      trainer_.Check(version_);
    }
  }

  // After a failed version a rank may have died, and so may the agent.
  void MayDie() {
    if (Chance(4)) trainer_.fleet().Replace(static_cast<uint32_t>(random_() % 2));
    if (!Chance(4)) return;
    host().Restart();
    UseNumberAgain(false);
  }
  // An agent that was restarted knows nothing of versions that failed: no other bytes may take their numbers.
  void UseNumberAgain(bool again) { again_ = again; }

  bool Chance(uint64_t one_in) { return random_() % one_in == 0; }
  uint64_t Below(uint64_t end) { return random_() % end; }
  run::Host& host() { return trainer_.fleet().host(); }
  Fleet& fleet() { return trainer_.fleet(); }
  Version version() const { return version_; }

 private:
  std::mt19937_64 random_;
  Trainer trainer_;
  Version version_ = 0;
  bool again_ = false;
  std::string failures_;  // of the last version, rank by rank
};

TEST_CASE("A rank that fails or dies at any call of CUDA's leaves no slot that is not what the tensors are") {
  constexpr uint64_t kKills = 105;
  const bool masters = GENERATE(false, true);
  cuda::Reset(2);
  Troubled trainer(masters, masters ? 11 : 12);
  trainer.Settle();
  cuda::ForgetCalls();
  REQUIRE(trainer.Publish());
  const uint64_t calls = cuda::Calls().size();
  uint64_t failed = 0;  // versions; an engine that drains, or a mark that is late, fails none
  for (uint64_t kill = 0; kill < kKills; ++kill) {
    INFO("kill " << kill);
    trainer.Settle();
    cuda::ForgetCalls();
    cuda::FailCall("", 1 + kill * calls / kKills, cudaErrorLaunchFailure);
    if (!trainer.Publish()) ++failed;
    trainer.MayDie();
  }
  CHECK(failed > kKills / 2);
  trainer.Settle();
}

TEST_CASE("An agent that is restarted at any moment of a version goes on from slots that are what the tensors are") {
  cuda::Reset(2);
  Troubled trainer(false, 13);
  for (int kill = 0; kill < 40; ++kill) {
    INFO("kill " << kill);
    trainer.Settle();
    const std::chrono::microseconds moment(trainer.Below(4000));
    std::thread restarts([&] {
      std::this_thread::sleep_for(moment);
      trainer.host().Restart();
    });
    trainer.Publish();
    restarts.join();
    trainer.UseNumberAgain(false);
  }
  trainer.Settle();
}

TEST_CASE("A version that one rank has committed and another one has not is not in what is served next") {
  cuda::Reset(2);
  Troubled trainer(true, 14);
  for (int kill = 0; kill < 40; ++kill) {
    INFO("kill " << kill);
    trainer.Settle();
    const auto absent = static_cast<uint32_t>(trainer.Below(2));
    trainer.Publish({{absent, kLeftOut}});
    if (trainer.Chance(2)) {
      (void)trainer.fleet().exporter(absent).Abort(trainer.version(), {ErrorCode::kAborted, "out of memory"});
      trainer.UseNumberAgain(trainer.Chance(2));
    }
    trainer.MayDie();
  }
  trainer.Settle();
}

}  // namespace
}  // namespace lockstep::exporter

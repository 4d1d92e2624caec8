// Versions that fail at every step, against the trainer's tensors.
#include "export_plugin/exporter/cuda_trainer.h"

namespace lockstep::exporter {
namespace {

// A trainer some of whose versions fail. Whatever becomes of them, the next that is served is what the tensors are.
class Troubled {
 public:
  Troubled(bool masters, uint64_t seed) : random_(seed), trainer_(Shards(), masters, seed) { trainer_.Open(true); }

  // Whether all ranks published. A version that failed may be tried again with other bytes.
  bool Publish(double density, std::map<uint32_t, Version> versions = {}) {
    trainer_.Train(density);
    if (!again_) ++version_;
    const std::vector<Status> outcomes = trainer_.fleet().TryPublish(version_, std::move(versions));
    const bool whole = std::all_of(outcomes.begin(), outcomes.end(), [](const Status& status) { return status.ok(); });
    again_ = !whole && Chance(2);
    return whole;
  }

  // Until a version is advanced again.
  void Settle() {
    for (const double density : {Chance(4) ? 0.3 : 0.02, 0.01, 0.01}) {
      int tries = 0;
      while (!Publish(density)) REQUIRE(++tries < 5);
      trainer_.Check(version_, trainer_.Expected());
    }
  }

  // A rank whose version failed may have died; so may the agent.
  void MayDie() {
    if (Chance(4)) trainer_.Replace(static_cast<uint32_t>(random_() % 2));
    if (!Chance(4)) return;
    host().Restart();
    UseNumberAgain(false);
  }
  // An agent that was restarted knows nothing of versions that failed: no other bytes may take their numbers.
  void UseNumberAgain(bool again) { again_ = again; }

  bool Chance(uint64_t one_in) { return random_() % one_in == 0; }
  uint64_t Below(uint64_t end) { return random_() % end; }
  publish::Host& host() { return trainer_.fleet().host(); }
  Fleet& fleet() { return trainer_.fleet(); }
  Version version() const { return version_; }

 private:
  std::mt19937_64 random_;
  Trainer trainer_;
  Version version_ = 0;
  bool again_ = false;
};

TEST_CASE("A rank that fails or dies at any call of CUDA's leaves no half that is not what the tensors are") {
  constexpr uint64_t kKills = 105;
  const bool masters = GENERATE(false, true);
  cuda::Reset(2);
  Troubled trainer(masters, masters ? 11 : 12);
  trainer.Settle();
  trainer.Settle();
  cuda::ForgetCalls();
  REQUIRE(trainer.Publish(0.01));
  const uint64_t calls = cuda::Calls().size();
  REQUIRE(cuda::Calls("TakeStripe").size() == 2);
  uint64_t failed = 0;  // versions; an engine that drains, or a mark that is late, fails none
  for (uint64_t kill = 0; kill < kKills; ++kill) {
    INFO("kill " << kill);
    trainer.Settle();
    cuda::ForgetCalls();
    cuda::FailCall("", 1 + kill * calls / kKills, cudaErrorLaunchFailure);
    if (!trainer.Publish(0.01)) ++failed;
    trainer.MayDie();
  }
  CHECK(failed > kKills / 2);
  trainer.Settle();
}

TEST_CASE("An agent that is restarted at any moment of a version goes on from halves that are what the tensors are") {
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
    trainer.Publish(0.01);
    restarts.join();
    trainer.UseNumberAgain(false);
  }
  trainer.Settle();
}

TEST_CASE("A version that a rank has committed and another one has not is in no half that is advanced") {
  cuda::Reset(2);
  Troubled trainer(true, 14);
  for (int kill = 0; kill < 40; ++kill) {
    INFO("kill " << kill);
    trainer.Settle();
    const auto absent = static_cast<uint32_t>(trainer.Below(2));
    trainer.Publish(0.01, {{absent, kLeftOut}});
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

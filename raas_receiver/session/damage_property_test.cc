// Replicas that lose bits at random moments, between all that a receiver does. What was found damaged is nowhere any
// more: in no replica that is shown, in no engine that is believed, in no log.
//
// $LOCKSTEP_SEEDS: how many random lives; $LOCKSTEP_SEED: the first of them.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <mutex>

#include "common/layout/layout_testing.h"
#include "common/os/temp_dir.h"
#include "raas_receiver/archive/log_fixture.h"
#include "raas_receiver/engine/drivers/driver_kind.h"
#include "raas_receiver/engine/ranks/ranks_fixture.h"
#include "raas_receiver/session/session_fixture.h"

namespace lockstep::session {
namespace {

// A server that loads directories: what it has is a copy of the file.
struct LoadingServer {
  std::mutex mutex;
  Bytes loaded;  // guarded by mutex
};

class LoadingDriver : public engine::EngineDriver {
 public:
  explicit LoadingDriver(LoadingServer& server)
      : engine::EngineDriver(*engine::FindDriverKind("vllm")), server_(server) {}
  engine::LoadOutcome Load(const engine::EngineVersion& version, const std::optional<engine::EngineVersion>&) override {
    Bytes loaded = replica::ReplicaFixture::FileBytes(version.path + "/model.safetensors");
    std::lock_guard lock(server_.mutex);
    server_.loaded = std::move(loaded);
    return {OkStatus(), engine::Serving::kNew};
  }
  Status Pause(const engine::EngineVersion&) override { return OkStatus(); }
  Status Resume(const engine::EngineVersion&) override { return OkStatus(); }
  Result<std::optional<bool>> StillServes(const engine::EngineVersion&) override { return std::optional(true); }
  void Cancel() override {}
  void Reset() override {}
  uint64_t failures() const override { return 0; }

 private:
  LoadingServer& server_;
};

// A receiver with an engine of two ranks in place, and one that loads the directory.
class Life {
 public:
  Life(uint64_t seed, bool archives) : random_(seed), archives_(archives) {
    receiver_.options.follow = false;
    Start();
    for (const uint32_t number : {0, 1}) AddRank(number);
    Pull();
  }
  ~Life() {
    server_.reset();
    receiver_.Stop();
  }

  // A live engine's ranks are replaced by ranks that know nothing.
  void ReplaceRanks() {
    for (const uint32_t number : {0, 1}) AddRank(number);
    Settle();
  }
  // Of the current replica, where no delta comes by.
  void FlipFrozen() {
    const std::span<const std::byte> data = receiver_.pair->current_data();
    const_cast<std::byte&>(data[data.size() - 100]) ^= std::byte{1};
  }
  bool EngineIs(Version version) const {
    return std::ranges::all_of(ranks_, [&](const auto& rank) { return rank->Is(version); });
  }
  void LoseRank() { ranks_[1]->End(); }
  void PublishNext() {
    Publish();
    Settle();
  }
  SessionFixture& receiver() { return receiver_; }
  void Publish() {
    if (published_ == 11) return;
    receiver_.agent.Publish();
    ++published_;
    Pull();
  }

  void Run() {
    for (int step = 0; step < 9; ++step) {
      INFO("step " << step << " after: " << story_);
      Do();
      Settle();
      Check();
    }
    LookAtAll();
    Check();
    Pull();  // ends a rollback
    Settle();
    if (archives_) CheckLog();
  }

 private:
  void Start() {
    if (archives_) receiver_.archive = log_.store();
    receiver_.entry = {.name = "tp2", .in_place = true};
    receiver_.entry.ranks.comes_back = std::chrono::milliseconds(0);
    receiver_.driver = nullptr;
    receiver_.others.push_back({{.name = "loading"}, std::make_unique<LoadingDriver>(loading_)});
    receiver_.Start();
    auto listening = engine::StartRankServer(
        sockets_.File("engine.sock"),
        {{"actor",
          {.find_ranks = [this](const auto& rank) { return receiver_.session->engines().Find(rank); },
           .layout = [this] { return receiver_.session->layout(); }}}});
    REQUIRE(listening.ok());
    server_ = *std::move(listening);
  }

  void AddRank(uint32_t number) {
    engine::TestRankOptions options{.socket = sockets_.File("engine.sock"), .rank = number, .reattach = true};
    ranks_[number] = std::make_unique<engine::RankHandle>(receiver_.replicas.model, options);
    ranks_[number]->StartThread();
  }

  // --- what happens ---

  void Do() {
    struct Event {
      const char* name;
      void (Life::*happens)();
    };
    static constexpr Event kEvents[] = {
        {"flip", &Life::Flip},        {"flip", &Life::Flip},
        {"publish", &Life::Publish},  {"publish", &Life::Publish},
        {"publish", &Life::Publish},  {"full", &Life::PullFull},
        {"rollback", &Life::Return},  {"restart", &Life::Restart},
        {"verify", &Life::Verify},    {"copy", &Life::Copy},
        {"new rank", &Life::NewRank}, {"look", &Life::LookAtOne},
        {"pull", &Life::Pull},        {"verify engines", &Life::VerifyEngines},
    };
    const Event& event = kEvents[random_.Between(0, std::size(kEvents) - 1)];
    story_ += std::string(story_.empty() ? "" : ", ") + event.name;
    (this->*event.happens)();
  }

  // Some bits of one replica, once all that flipped before was found.
  void Flip() {
    if (unfound_) return;
    const bool current = random_.OneIn(2);
    const std::span<const std::byte> data = current ? receiver_.pair->current_data() : receiver_.pair->previous_data();
    if (data.empty()) return;
    const auto writable = std::span(const_cast<std::byte*>(data.data()), data.size());
    for (uint64_t bits = random_.Between(1, 3); bits > 0; --bits) {
      // Half of them where no delta comes by.
      const uint64_t at =
          random_.OneIn(2) ? data.size() - 1 - random_.Between(0, 700) : random_.Between(0, data.size() - 1);
      writable[at] ^= std::byte{static_cast<uint8_t>(1 << random_.Between(0, 7))};
    }
    story_ += current ? " of current" : " of previous";
    unfound_ = true;
    found_before_ = FoundBlocks();
  }

  void Pull() { (void)receiver_.Pull(); }
  void PullFull() { (void)receiver_.Pull(true); }
  void Return() { (void)receiver_.Rollback(); }
  void Verify() { (void)receiver_.session->Verify(); }
  void VerifyEngines() {
    (void)receiver_.session->VerifyEngines([] { return false; });
  }
  void Copy() {
    Bytes copy(receiver_.replicas.model.layout()->data_bytes());
    (void)receiver_.pair->CopyCurrent(0, copy);
  }
  void NewRank() { AddRank(static_cast<uint32_t>(random_.Between(0, 1))); }
  // As the scrub does, while the session is idle.
  void LookAt(size_t replica) {
    (void)receiver_.pair->Check(replica, 0, UINT64_MAX);
    Settle();
  }
  void LookAtOne() { LookAt(random_.Between(0, 1)); }
  void Restart() {
    server_.reset();
    receiver_.Stop();
    Start();
    found_before_ = 0;
    if (receiver_.pair->current().held.nothing()) Pull();
  }

  // --- what is then ---

  // Until engines serve what is current, and nothing that is held is known to be damaged.
  void Settle() {
    const auto settled = [&] {
      const v1::ReceiverModel model = receiver_.Describe();
      const bool rests = receiver_.Resting() || model.state() == v1::SESSION_STATE_HELD;
      if (!rests || receiver_.pair->current().damaged || receiver_.pair->previous().damaged) return false;
      const Version held = model.held().version();
      const bool told = std::ranges::all_of(model.engines(), [&](const v1::Engine& engine) {
        return engine.served().version() == held && engine.last_error().empty();
      });
      return told && std::ranges::all_of(ranks_, [&](const auto& rank) {
               const engine::RankStatus& status = rank->status();
               return status.following && !status.paused && status.serving == held;
             });
    };
    receiver_.WaitFor(settled);
  }

  void LookAtAll() {
    story_ += ", look at all";
    for (const size_t replica : {0, 1}) LookAt(replica);
    const bool found = FoundBlocks() > found_before_;
    // What was written over before it was found is in no replica, but may be in an engine.
    if (unfound_ && !found) PullFull();
    Settle();
    unfound_ = false;
  }

  // By whatever means, and whatever was done about it.
  uint64_t FoundBlocks() const {
    const v1::ReceiverModel model = receiver_.Describe();
    return model.damaged_blocks() + model.repaired_blocks();
  }

  void Check() {
    if (unfound_ && FoundBlocks() > found_before_) {
      Settle();  // an archiver's copy finds it at any time
      unfound_ = false;
    }
    if (unfound_) return;
    const replica::TestModel& model = receiver_.replicas.model;
    const auto check = [&](const replica::PublishedVersion& version, std::span<const std::byte> data) {
      if (version.held.nothing()) return;
      REQUIRE(version.digest == model.manifest(version.held.version).digest);
      REQUIRE(std::ranges::equal(data, model.data(version.held.version)));
    };
    const replica::PublishedVersion current = receiver_.pair->current();
    check(current, receiver_.pair->current_data());
    check(receiver_.pair->previous(), receiver_.pair->previous_data());
    for (const auto& rank : ranks_) REQUIRE(rank->Is(current.held.version));
    std::lock_guard lock(loading_.mutex);
    REQUIRE((loading_.loaded == replica::ReplicaFixture::Image(model, current.held.version)));
  }

  void CheckLog() {
    WorkerPool transfers(4);
    receiver_.WaitFor([&] {
      const v1::ReceiverModel model = receiver_.Describe();
      return model.archive().newest().version() == published_;
    });
    archive::CheckLogOf(receiver_.replicas.model, log_.store(), transfers, receiver_.replicas.pool);
  }

  layout::Random random_;
  const bool archives_;
  const os::TempDir sockets_;
  objects::TestStore log_;
  SessionFixture receiver_;
  LoadingServer loading_;
  std::unique_ptr<os::UnixServer> server_;
  std::array<std::unique_ptr<engine::RankHandle>, 2> ranks_;
  Version published_ = 1;
  bool unfound_ = false;  // there may be flips that were not found
  uint64_t found_before_ = 0;
  std::string story_;
};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

}  // namespace

TEST_CASE("An engine that was written from a damaged block has the trainer's bytes once a sync found that") {
  Life life(1, /*archives=*/false);
  life.FlipFrozen();
  life.ReplaceRanks();
  CHECK_FALSE(life.EngineIs(1));  // nothing has found it yet
  life.PublishNext();
  CHECK(life.receiver().Describe().damaged_blocks() == 1);
  CHECK(life.EngineIs(2));
  life.PublishNext();
  CHECK(life.EngineIs(3));
}

TEST_CASE("A repair does not wait for an engine that lacks a rank and reads the version before") {
  Life life(1, /*archives=*/false);
  life.ReplaceRanks();
  life.LoseRank();
  life.Publish();
  life.FlipFrozen();
  CHECK(life.receiver().session->Verify()->bad_blocks.size() == 1);
  life.receiver().WaitFor([&] { return life.receiver().session->HoldsVersion(); });
  life.receiver().Check(2);
  life.ReplaceRanks();
  CHECK(life.EngineIs(2));
}

TEST_CASE("An engine is not led on by a delta that did not give what it promised") {
  Life life(1, /*archives=*/false);
  life.ReplaceRanks();
  // It tells of one change, and not of those that there are: the block is fetched whole.
  payload::DeltaBlock& block = life.receiver().agent.lanes().payloads.at(1)[0];
  const payload::Changes other{.positions = {0}, .steps = {1}};
  block.codec = payload::Codec::kSparse;
  block.changes = 1;
  block.data.clear();
  payload::EncodeSparse(other, life.receiver().replicas.model.layout()->block_unit(block.block),
                        payload::CodecLevel::kCompact, block.data);
  block.data_hash = Hash64(block.data);
  life.PublishNext();
  CHECK(life.receiver().Describe().repaired_blocks() == 1);
  CHECK(life.EngineIs(2));
}

TEST_CASE("What was found damaged is shown, served and archived nowhere any more") {
  const uint64_t first = FromEnvironment("LOCKSTEP_SEED", 1);
  for (uint64_t seed = first; seed < first + FromEnvironment("LOCKSTEP_SEEDS", 1000); ++seed) {
    INFO("LOCKSTEP_SEED=" << seed << " LOCKSTEP_SEEDS=1");
    Life(seed, seed % 4 == 0).Run();
  }
}

}  // namespace lockstep::session

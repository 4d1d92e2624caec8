// What a receiver has of an engine's ranks, their server, and an engine of two ranks, as threads or processes. For
// tests.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/eventually.h"
#include "common/os/temp_dir.h"
#include "raas_receiver/engine/ranks/engine_ranks.h"
#include "raas_receiver/engine/ranks/rank_server.h"
#include "raas_receiver/engine/ranks/test_rank.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::engine {

// Memory that forked processes share with their parent.
template <typename T>
class SharedObject {
 public:
  SharedObject() : segment_(*os::CreateMemfdSegment("test", sizeof(T))), object_(new (segment_.data()) T()) {}
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }

 private:
  os::MappedSegment segment_;
  T* object_;
};

// A rank with its memory, which outlives the thread or process that runs it.
class RankHandle {
 public:
  RankHandle(const replica::TestModel& model, TestRankOptions options)
      : model_(model), options_(std::move(options)), parts_(model, options_.rank, options_.without) {
    memory_ = *os::CreateMemfdSegment("parameters", parts_.bytes());
    parts_.Fill(memory_.data());
  }
  ~RankHandle() { End(); }

  void StartThread() {
    thread_ = std::thread([this] { TestRank(model_, options_, *status_, memory_).Run(); });
  }
  void StartProcess() {
    child_ = ::fork();
    if (child_ != 0) return;
    TestRank(model_, options_, *status_, memory_).Run();
    ::_exit(0);
  }
  void Kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(std::exchange(child_, -1), nullptr, 0);
  }
  void End() {
    status_->stop = true;
    if (thread_.joinable()) thread_.join();
    if (child_ > 0) ::waitpid(std::exchange(child_, -1), nullptr, 0);
    status_->stop = false;
  }

  RankStatus& status() { return *status_; }
  std::byte* memory() { return memory_.data(); }
  bool Is(Version version) { return parts_.Is(version, memory()); }
  Bytes ImageOf(Version version) const { return parts_.Expected(version); }
  // As one that loads versions by itself.
  void Load(Version version) {
    const Bytes image = ImageOf(version);
    std::copy(image.begin(), image.end(), memory());
  }
  // Whether it reads `version`, its memory is that, and nothing else was ever read.
  bool Serves(Version version) {
    return !status_->paused && status_->serving == version && Is(version) && status_->wrong_reads == 0;
  }
  TestRankOptions& options() { return options_; }
  const TestRankMemory& parts() const { return parts_; }

 private:
  const replica::TestModel& model_;
  TestRankOptions options_;
  const TestRankMemory parts_;
  SharedObject<RankStatus> status_;
  os::MappedSegment memory_;
  std::thread thread_;
  pid_t child_ = -1;
};

// Every rank attaches here.
inline FollowedModel Always(EngineRanks& ranks, FindLayout layout) {
  const auto find = [&ranks](const auto&) { return std::shared_ptr<EngineRanks>(std::shared_ptr<void>(), &ranks); };
  return {.find_ranks = find, .layout = std::move(layout)};
}

struct RanksFixture {
  os::TempDir directory;
  replica::TestModel model;
  EngineRanksOptions options{.model = "actor"};
  std::chrono::milliseconds attach_timeout = kPatience;
  std::set<std::pair<Version, Version>> asked;  // of the deltas
  bool deltas_at_hand = true;
  std::atomic<int> changes{0};
  int seen = 0;
  std::atomic<bool> layout_known = true;

  std::unique_ptr<EngineRanks> engine_ranks;
  std::unique_ptr<os::UnixServer> server;
  std::vector<std::unique_ptr<RankHandle>> ranks;

  explicit RanksFixture(int versions = 3) {
    options.pause_timeout = options.serve_timeout = kPatience;
    options.comes_back = std::chrono::milliseconds(0);
    options.batch_bytes = 16'384;  // so that there are several
    for (int i = 0; i < versions; ++i) model.Advance();
  }

  std::string socket() const { return directory.File("engine.sock"); }

  Status Start() {
    engine_ranks = std::make_unique<EngineRanks>(options);
    engine_ranks->SetChanged([this] { ++changes; });
    const FindLayout layout = [this]() -> Result<std::shared_ptr<const model::ModelLayout>> {
      if (layout_known) return model.layout();
      return Status(ErrorCode::kNotFound, "no layout is known yet");
    };
    LS_ASSIGN_OR_RETURN(server, StartRankServer(socket(), {{"actor", Always(*engine_ranks, layout)}}, attach_timeout));
    return OkStatus();
  }
  void Stop() {
    server.reset();
    engine_ranks.reset();
  }
  ~RanksFixture() {
    Stop();
    ranks.clear();
  }

  RankHandle& AddRank(uint32_t rank, const std::function<void(TestRankOptions&)>& adjust = {}) {
    TestRankOptions rank_options{.socket = socket(), .rank = rank};
    if (adjust) adjust(rank_options);
    return *ranks.emplace_back(std::make_unique<RankHandle>(model, rank_options));
  }
  RankHandle& RunRank(uint32_t rank, const std::function<void(TestRankOptions&)>& adjust = {}) {
    RankHandle& handle = AddRank(rank, adjust);
    handle.StartThread();
    return handle;
  }
  // Waits until `count` more ranks have come, or were noticed to have gone.
  bool Changed(int count) {
    return Eventually([&, all = seen += count] {
      engine_ranks->Rest(std::chrono::milliseconds(0));
      return changes >= all;
    });
  }

  VersionData Target(Version version) const { return {model.held(version), model.layout(), model.data(version)}; }
  Status Prepare(Version version, Version before = 0) {
    CommitRequest request{
        .version = Target(version), .before = {}, .deltas = [this](const VersionRef& from, const VersionRef& to) {
          asked.insert({from.version, to.version});
          if (!deltas_at_hand || from.run != to.run) return payload::DeltaChain();
          return model.Chain(std::min(from.version, to.version), std::max(from.version, to.version));
        }};
    if (before != 0) request.before = Target(before);
    return engine_ranks->Prepare(request);
  }
  // As a session does it. `before` is 0 where the session has no other version.
  Status Bring(Version version, Version before = 0) {
    LS_RETURN_IF_ERROR(Prepare(version, before));
    return engine_ranks->prepared() ? engine_ranks->Commit() : OkStatus();
  }
  RankGroupReport report() const {
    const std::vector<RankGroupReport> groups = engine_ranks->Describe();
    return groups.empty() ? RankGroupReport{} : groups.front();
  }
};

// Started.
struct TwoRanks : RanksFixture {
  explicit TwoRanks(int versions = 3) : RanksFixture(versions) { REQUIRE(Start().ok()); }
  // Two ranks that serve version 1.
  void ServeFirst() {
    RunRank(0);
    RunRank(1);
    REQUIRE(Changed(2));
    const Status status = Bring(1);
    INFO(status.ToString());
    REQUIRE(status.ok());
    REQUIRE(AllServe(1));
  }
  bool AllServe(Version version) {
    bool all = true;
    for (auto& rank : ranks) all = all && Eventually([&] { return rank->Serves(version); });
    return all && report().serving() == model.held(version);
  }
};

}  // namespace lockstep::engine

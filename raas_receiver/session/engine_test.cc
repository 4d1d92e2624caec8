#include "raas_receiver/session/engine.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/status_testing.h"
#include "raas_receiver/engines/driver_kind.h"
#include "raas_receiver/replica/replica_fixture.h"
#include "raas_receiver/targets/targets_fixture.h"

namespace lockstep::session {
namespace {

// A server that does what a test says, and counts what it is asked.
struct TestServer {
  Status load_status;
  engines::Serving after_failure = engines::Serving::kOld;
  std::optional<bool> still_serves = true;
  Status answers;
  int loads = 0;
  std::atomic<int> checks = 0;
  std::string last_mode;
};

class TestDriver : public engines::EngineDriver {
 public:
  explicit TestDriver(TestServer& server) : engines::EngineDriver(*engines::FindDriverKind("vllm")), server_(server) {}

  engines::LoadOutcome Load(const engines::EngineVersion& version,
                            const std::optional<engines::EngineVersion>&) override {
    ++server_.loads;
    server_.last_mode = version.mode;
    return {server_.load_status, server_.load_status.ok() ? engines::Serving::kNew : server_.after_failure};
  }
  Status Pause(const engines::EngineVersion&) override { return OkStatus(); }
  Status Resume(const engines::EngineVersion&) override { return OkStatus(); }
  Result<std::optional<bool>> StillServes(const engines::EngineVersion&) override {
    ++server_.checks;
    LS_RETURN_IF_ERROR(server_.answers);
    return server_.still_serves;
  }
  Status Answers() override {
    ++server_.checks;
    return server_.answers;
  }
  void Cancel() override {}
  void Reset() override {}
  uint64_t failures() const override { return 0; }

 private:
  TestServer& server_;
};

struct Fixture {
  replica::ReplicaFixture replicas;
  ChangeSignal changed;
  TestServer server;
  std::optional<EngineContext> context;
  std::unique_ptr<Engine> engine;

  Fixture() {
    for (int version = 0; version < 3; ++version) replicas.model.Advance();
    replicas.Open();
    replicas.PullFull(1);
    context.emplace(
        EngineContext{.model = "actor", .replicas = replicas.pair(), .timeline = nullptr, .changed = changed});
    Start();
  }
  void Start() { engine = std::make_unique<Engine>(*context, EngineConfig(), std::make_unique<TestDriver>(server)); }
  EngineOutcome Serve(const std::string& mode) {
    engine->Begin(mode);
    return engine->Take();
  }
  Version ServedVersion() const { return engine->served().version; }
  // Waits until the server was asked.
  void Check(int checks) {
    engine->Check();
    REQUIRE(Eventually([&] { return server.checks == checks && engine->Idle(); }));
  }
};

// The ranks of the fixture's server.
class ComparingRanks {
 public:
  explicit ComparingRanks(Fixture& fixture) {
    const std::string socket = directory_.File("engine.sock");
    const auto layout = [&] { return fixture.replicas.model.layout(); };
    server_ = *targets::StartTargetServer(socket, {{"actor", targets::Always(fixture.engine->targets(), layout)}},
                                          targets::kPatience);
    for (const uint32_t number : {0, 1}) {
      const targets::TestRankOptions options{.socket = socket, .rank = number, .compares = true};
      ranks_.push_back(std::make_unique<targets::RankHandle>(fixture.replicas.model, options));
      ranks_.back()->StartThread();
    }
    REQUIRE(Eventually([&] {
      v1::ReceiverModel model;
      fixture.engine->Check();
      fixture.engine->Describe(model, true);
      return model.rank_groups_size() == 1 && model.rank_groups(0).comparing() == 2;
    }));
  }
  void Load(Version version) {
    for (auto& rank : ranks_) rank->Load(version);
  }

 private:
  os::TempDir directory_;
  std::unique_ptr<os::UnixServer> server_;
  std::vector<std::unique_ptr<targets::RankHandle>> ranks_;
};

TEST_CASE("An engine is behind until it was made to serve the current version, and is again with the next") {
  Fixture fixture;
  CHECK(fixture.engine->Behind());
  CHECK(fixture.Serve("full").status.ok());
  CHECK(fixture.server.last_mode == "full");
  CHECK(fixture.ServedVersion() == 1);
  CHECK_FALSE(fixture.engine->Behind());
  CHECK_FALSE(fixture.engine->Due());
  fixture.replicas.PullDelta(2);
  CHECK(fixture.engine->Behind());
  CHECK(fixture.ServedVersion() == 1);
}

TEST_CASE("What an engine serves is remembered across restarts of the receiver") {
  Fixture fixture;
  fixture.Start();
  CHECK(fixture.engine->Behind());
  REQUIRE(fixture.Serve("recovered").status.ok());
  fixture.Start();
  CHECK_FALSE(fixture.engine->Behind());
  CHECK(fixture.ServedVersion() == 0);  // its server may be another one
  fixture.Check(1);
  CHECK(fixture.ServedVersion() == 1);
}

TEST_CASE("After a failure the engine is due again only when some time is over") {
  Fixture fixture;
  fixture.server.load_status = {ErrorCode::kAborted, "out of memory"};
  CHECK(fixture.Serve("full").status.code() == ErrorCode::kAborted);
  CHECK(fixture.ServedVersion() == 0);
  CHECK_FALSE(fixture.engine->Due());
  CHECK(fixture.engine->UntilDue() <= std::chrono::milliseconds(1'001));
  while (!fixture.engine->Due()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  fixture.server.load_status = OkStatus();
  CHECK(fixture.Serve("again").status.ok());
  CHECK_FALSE(fixture.engine->Due());
}

TEST_CASE("A server that reverted to the version before is given the same one again only after the longest wait") {
  Fixture fixture;
  REQUIRE(fixture.Serve("full").status.ok());
  fixture.replicas.PullDelta(2);
  fixture.server.load_status = {ErrorCode::kInternal, "it does not fit"};
  fixture.server.after_failure = engines::Serving::kLastGood;
  CHECK_THAT(fixture.Serve("delta").status, FailsWith(ErrorCode::kInternal, "it does not fit"));
  CHECK(fixture.ServedVersion() == 1);
  CHECK(fixture.engine->Behind());
  CHECK_FALSE(fixture.engine->Due());
  CHECK(fixture.engine->UntilDue() > std::chrono::seconds(1));  // the first wait after any other failure
  fixture.replicas.PullDelta(3);
  CHECK(fixture.engine->Due());
}

TEST_CASE("The two versions that a load may read are those of its begin, until it was taken") {
  Fixture fixture;
  REQUIRE(fixture.Serve("full").status.ok());
  fixture.replicas.PullDelta(2);
  CHECK_FALSE(fixture.engine->ReadsPrevious());
  fixture.engine->Begin("delta");
  CHECK(fixture.engine->ReadsPrevious());  // which it would return to
  fixture.replicas.PullDelta(3);
  CHECK(fixture.engine->ReadsPrevious());  // which it loads
  REQUIRE(fixture.engine->Take().status.ok());
  CHECK_FALSE(fixture.engine->ReadsPrevious());
  CHECK_FALSE(fixture.engine->under_way());
}

TEST_CASE("Engines are compared with what their server serves, which is not always the current version") {
  Fixture fixture;
  CHECK(*fixture.engine->Verify() == 0);  // none is attached
  ComparingRanks ranks(fixture);
  ranks.Load(1);
  CHECK_THAT(fixture.engine->Verify(), FailsWith(ErrorCode::kState, "not known which"));
  REQUIRE(fixture.Serve("full").status.ok());
  CHECK(*fixture.engine->Verify() == 1);
  fixture.replicas.PullDelta(2);
  CHECK(*fixture.engine->Verify() == 1);
  REQUIRE(fixture.Serve("delta").status.ok());
  CHECK_THAT(fixture.engine->Verify(), FailsWith(ErrorCode::kCorrupt, "than version 2"));
  CHECK(fixture.ServedVersion() == 0);  // it is to load it again
  REQUIRE(fixture.Serve("delta").status.ok());
  ranks.Load(2);
  CHECK(*fixture.engine->Verify() == 1);
  fixture.replicas.PullDelta(3);
  fixture.replicas.PullFull(3);
  CHECK_THAT(fixture.engine->Verify(), FailsWith(ErrorCode::kState, "version 2, which is not held"));
}

TEST_CASE("A server that was restarted is noticed when it is asked, which is not often, and is behind then") {
  Fixture fixture;
  REQUIRE(fixture.Serve("full").status.ok());
  fixture.Check(1);
  fixture.Check(1);
  CHECK_FALSE(fixture.engine->Behind());

  fixture.Start();  // which has not asked yet
  fixture.server.still_serves = false;
  fixture.Check(2);
  CHECK(fixture.engine->Due());
  CHECK(fixture.ServedVersion() == 0);
}

TEST_CASE(
    "A server that does not answer serves nothing, until it names the version or, where it cannot, has loaded it") {
  Fixture fixture;
  REQUIRE(fixture.Serve("full").status.ok());
  const auto ask = [&](const Status& answers) {
    fixture.server.answers = answers;
    REQUIRE(Eventually([&, checks = fixture.server.checks.load()] {
      fixture.engine->Check();
      return fixture.server.checks > checks && fixture.engine->Idle();
    }));
    return fixture.ServedVersion();
  };
  const Status slow(ErrorCode::kDeadline, "no answer in time");
  const Status gone(ErrorCode::kUnavailable, "connection refused");
  CHECK(ask(slow) == 1);  // it may be busy
  CHECK(ask(OkStatus()) == 1);
  CHECK(ask(slow) == 1);
  CHECK(ask(slow) == 0);
  CHECK(ask(OkStatus()) == 1);
  CHECK(ask(gone) == 0);
  v1::ReceiverModel model;
  fixture.engine->Describe(model, true);
  CHECK(model.engines(0).state() == v1::ENGINE_STATE_FAILING);
  CHECK_THAT(model.last_error(), Catch::Contains("connection refused"));
  CHECK(ask(OkStatus()) == 1);
  CHECK_FALSE(fixture.engine->Due());

  fixture.server.still_serves = std::nullopt;
  CHECK(ask(OkStatus()) == 1);
  CHECK(ask(gone) == 0);
  CHECK_FALSE(fixture.engine->Due());
  CHECK(ask(OkStatus()) == 0);
  CHECK(fixture.engine->Due());
  REQUIRE(fixture.Serve("again").status.ok());
  CHECK(fixture.ServedVersion() == 1);
}

TEST_CASE("A server that takes no connection is loaded as soon as it answers, however often it was not there") {
  Fixture fixture;
  fixture.server.load_status = fixture.server.answers = {ErrorCode::kUnavailable, "connection refused"};
  for (int version = 1; version <= 3; ++version) {
    if (version > 1) fixture.replicas.PullDelta(version);
    CHECK(fixture.engine->Due());  // once for each version
    CHECK(fixture.Serve("full").status.code() == ErrorCode::kUnavailable);
    CHECK_FALSE(fixture.engine->Due());
  }
  fixture.Check(1);
  CHECK_FALSE(fixture.engine->Due());
  fixture.server.load_status = fixture.server.answers = OkStatus();
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(Eventually([&] {
    fixture.engine->Check();
    return fixture.engine->Due();
  }));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));
  CHECK(fixture.Serve("again").status.ok());
  CHECK(fixture.ServedVersion() == 3);
}

}  // namespace
}  // namespace lockstep::session

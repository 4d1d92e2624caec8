#include "raas_receiver/engine/engine.h"

#include <catch2/catch.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/status_testing.h"
#include "raas_receiver/engine/drivers/driver_kind.h"
#include "raas_receiver/engine/ranks/ranks_fixture.h"
#include "raas_receiver/replica/replica_fixture.h"

namespace lockstep::engine {
namespace {

// A server that does what a test says.
struct TestServer {
  Status load_status;
  Serving after_failure = Serving::kOld;
  std::optional<bool> still_serves = true;
  Status answers;
  bool holds_loads = false;  // they do not end
  int questions = 1 << 20;   // that it takes; more wait
  int loads = 0;
  int begun = 0;  // questions,
  int asked = 0;  // and those that were answered
  std::string last_mode;
};

class TestDriver : public EngineDriver {
 public:
  TestDriver(TestServer& server, std::mutex& mutex)
      : EngineDriver(*FindDriverKind("vllm")), server_(server), mutex_(mutex) {}

  LoadOutcome Load(const EngineVersion& version, const std::optional<EngineVersion>&) override {
    std::unique_lock lock(mutex_);
    ++server_.loads;
    server_.last_mode = version.mode;
    Await(lock, [this] { return !server_.holds_loads; });
    return {server_.load_status, server_.load_status.ok() ? Serving::kNew : server_.after_failure};
  }
  Status Pause(const EngineVersion&) override { return OkStatus(); }
  Status Resume(const EngineVersion&) override { return OkStatus(); }
  Result<std::optional<bool>> StillServes(const EngineVersion&) override {
    LS_RETURN_IF_ERROR(Answers());
    std::unique_lock lock(mutex_);
    return server_.still_serves;
  }
  Status Answers() override {
    std::unique_lock lock(mutex_);
    ++server_.begun;
    Await(lock, [this] { return server_.questions > 0; });
    --server_.questions;
    ++server_.asked;
    return server_.answers;
  }
  void Cancel() override {}
  void Reset() override {}
  uint64_t failures() const override { return 0; }

 private:
  template <typename Condition>
  void Await(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    while (!condition()) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
    }
  }

  TestServer& server_;
  std::mutex& mutex_;
};

struct Fixture {
  replica::ReplicaFixture replicas;
  std::mutex mutex;
  TestServer server;  // guarded by mutex
  receipts::ServingLedger ledger;
  std::optional<EngineContext> context;
  std::unique_ptr<Engine> engine;
  uint64_t number = 0;
  std::mutex giving;
  std::optional<EngineAttempt> given;  // nothing: nothing is given again; guarded by giving
  std::jthread gives{[this](const std::stop_token& stop) { GiveAgain(stop); }};

  Fixture() {
    for (int version = 0; version < 3; ++version) replicas.model.Advance();
    replicas.Open();
    replicas.PullFull(1);
    context.emplace(EngineContext{.model = "actor", .replicas = replicas.pair(), .changed = [] {}, .ledger = &ledger});
    Start();
  }
  // As a session that has nothing else to do.
  void GiveAgain(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      {
        std::lock_guard lock(giving);
        if (given) engine->Give(given);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  // An engine that was given nothing yet.
  void Start() {
    std::lock_guard lock(giving);
    given.reset();
    engine.reset();
    engine = std::make_unique<Engine>(*context, EngineConfig(), std::make_unique<TestDriver>(server, mutex));
    engine->Give(std::nullopt);
  }
  template <typename Use>
  auto With(const Use& use) {
    std::lock_guard lock(mutex);
    return use(server);
  }
  ~Fixture() {
    gives = {};
    With([](TestServer& server) {
      server.holds_loads = false;
      server.questions = 1 << 20;
    });
  }
  int loads() {
    return With([](TestServer& server) { return server.loads; });
  }
  void Give(const std::string& mode) {
    std::lock_guard lock(giving);
    given = WhatToGive(*context, ++number, mode);
    engine->Give(given);
  }
  bool TakeBack() {
    std::lock_guard lock(giving);
    given.reset();
    return engine->TakeBack();
  }
  EngineOutcome Outcome() {
    REQUIRE(Eventually([&] { return engine->OutcomeOf(number) && !engine->under_way(); }));
    return *engine->OutcomeOf(number);
  }
  EngineOutcome Serve(const std::string& mode) {
    Give(mode);
    return Outcome();
  }
  Version ServedVersion() const { return engine->served().version; }
  bool WaitServed(Version version) {
    return Eventually([&] { return ServedVersion() == version; });
  }
  // Long enough for what is not to happen.
  void Linger() { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }
};

// The ranks of the fixture's server.
class ComparingRanks {
 public:
  explicit ComparingRanks(Fixture& fixture) {
    const std::string socket = directory_.File("engine.sock");
    const auto layout = [&] { return fixture.replicas.model.layout(); };
    server_ = *StartRankServer(socket, {{"actor", Always(fixture.engine->ranks(), layout)}}, kPatience);
    for (const uint32_t number : {0, 1}) {
      const TestRankOptions options{.socket = socket, .rank = number, .compares = true};
      ranks_.push_back(std::make_unique<RankHandle>(fixture.replicas.model, options));
      ranks_.back()->StartThread();
    }
    REQUIRE(Eventually([&] {
      v1::ReceiverModel model;
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
  std::vector<std::unique_ptr<RankHandle>> ranks_;
};

TEST_CASE("An engine is behind until it was made to serve the current version, and is again with the next") {
  Fixture fixture;
  CHECK(fixture.engine->Behind());
  CHECK(fixture.Serve("full").status.ok());
  CHECK(fixture.With([](TestServer& server) { return server.last_mode; }) == "full");
  CHECK(fixture.ServedVersion() == 1);
  CHECK_FALSE(fixture.engine->Behind());
  fixture.replicas.PullDelta(2);
  CHECK(fixture.engine->Behind());
  CHECK(fixture.ServedVersion() == 1);
  fixture.Linger();
  CHECK(fixture.loads() == 1);  // it was not given the next one
}

TEST_CASE("An engine has an open receipt while its server serves, and none while that loads") {
  Fixture fixture;
  const auto open = [&] {
    fixture.engine->NoteServing();
    const auto receipt = fixture.ledger.Open("default");
    return receipt ? receipt->version() : 0;
  };
  CHECK(open() == 0);
  REQUIRE(fixture.Serve("full").status.ok());
  REQUIRE(Eventually([&] { return open() == 1; }));
  CHECK(fixture.ledger.Open("default")->manifest_digest() == ToBytes(fixture.replicas.pair().current().digest));
  fixture.replicas.PullDelta(2);
  fixture.With([](TestServer& server) { server.holds_loads = true; });
  fixture.Give("delta");
  REQUIRE(Eventually([&] { return fixture.loads() == 2; }));
  CHECK(open() == 0);
  CHECK(fixture.ledger.Find({}).at(0).ended());
  fixture.With([](TestServer& server) { server.holds_loads = false; });
  CHECK(Eventually([&] { return open() == 2; }));
}

TEST_CASE("What an engine serves is remembered across restarts of the receiver") {
  Fixture fixture;
  fixture.Start();
  CHECK(fixture.engine->Behind());
  REQUIRE(fixture.Serve("recovered").status.ok());
  fixture.With([](TestServer& server) { server.questions = 0; });
  fixture.Start();
  CHECK_FALSE(fixture.engine->Behind());
  CHECK(fixture.ServedVersion() == 0);  // its server may be another one
  fixture.With([](TestServer& server) { server.questions = 1; });
  CHECK(fixture.WaitServed(1));
  CHECK(fixture.loads() == 1);
}

TEST_CASE("After a failure the engine tries again by itself, when some time is over") {
  Fixture fixture;
  fixture.With([](TestServer& server) { server.load_status = {ErrorCode::kAborted, "out of memory"}; });
  CHECK(fixture.Serve("full").status.code() == ErrorCode::kAborted);
  const auto failed = std::chrono::steady_clock::now();
  CHECK(fixture.ServedVersion() == 0);
  fixture.With([](TestServer& server) { server.load_status = OkStatus(); });
  CHECK(fixture.WaitServed(1));
  CHECK(std::chrono::steady_clock::now() - failed > std::chrono::milliseconds(300));
  CHECK(fixture.loads() == 2);
  CHECK(fixture.Outcome().status.ok());
}

TEST_CASE("A server that reverted to the version before is given the same one again only after the longest wait") {
  Fixture fixture;
  REQUIRE(fixture.Serve("full").status.ok());
  fixture.replicas.PullDelta(2);
  fixture.With([](TestServer& server) {
    server.load_status = {ErrorCode::kInternal, "it does not fit"};
    server.after_failure = Serving::kLastGood;
  });
  CHECK_THAT(fixture.Serve("delta").status, FailsWith(ErrorCode::kInternal, "it does not fit"));
  CHECK(fixture.ServedVersion() == 1);
  CHECK(fixture.engine->Behind());
  std::this_thread::sleep_for(std::chrono::milliseconds(1'300));  // the first wait after any other failure
  CHECK(fixture.loads() == 2);
  fixture.replicas.PullDelta(3);
  (void)fixture.Serve("delta");
  CHECK(fixture.loads() == 3);
}

TEST_CASE("The two versions that a load may read are not taken back before it has ended") {
  Fixture fixture;
  REQUIRE(fixture.Serve("full").status.ok());
  CHECK(fixture.TakeBack());
  fixture.replicas.PullDelta(2);
  fixture.With([](TestServer& server) { server.holds_loads = true; });
  fixture.Give("delta");
  CHECK_FALSE(fixture.TakeBack());  // it would return to the one before
  fixture.replicas.PullDelta(3);
  CHECK_FALSE(fixture.TakeBack());  // it loads that one
  fixture.With([](TestServer& server) { server.holds_loads = false; });
  REQUIRE(fixture.Outcome().status.ok());
  CHECK(fixture.TakeBack());
  fixture.Linger();
  CHECK(fixture.loads() == 2);  // it is behind, and begins nothing until it is given something
}

TEST_CASE("Engines are compared with what their server serves, which is not always the current version") {
  Fixture fixture;
  const auto verify = [&] { return fixture.engine->Verify().get(); };
  CHECK(*verify() == 0);  // none is attached
  ComparingRanks ranks(fixture);
  ranks.Load(1);
  CHECK_THAT(verify(), FailsWith(ErrorCode::kState, "not known which"));
  REQUIRE(fixture.Serve("full").status.ok());
  CHECK(*verify() == 1);
  fixture.replicas.PullDelta(2);
  CHECK(*verify() == 1);
  REQUIRE(fixture.Serve("delta").status.ok());
  fixture.With([](TestServer& server) { server.holds_loads = true; });
  CHECK_THAT(verify(), FailsWith(ErrorCode::kCorrupt, "than version 2"));
  CHECK(fixture.ServedVersion() == 0);  // it is to load it again
  ranks.Load(2);
  fixture.With([](TestServer& server) { server.holds_loads = false; });
  CHECK(fixture.WaitServed(2));
  CHECK(*verify() == 1);
  fixture.replicas.PullDelta(3);
  fixture.replicas.PullFull(3);
  CHECK_THAT(verify(), FailsWith(ErrorCode::kState, "version 2, which is not held"));
}

TEST_CASE("A server that was restarted is noticed when it is asked, and given the version again") {
  Fixture fixture;
  REQUIRE(fixture.Serve("full").status.ok());
  fixture.With([](TestServer& server) { server.still_serves = false; });
  REQUIRE(Eventually([&] { return fixture.loads() == 2; }));
  fixture.With([](TestServer& server) { server.still_serves = true; });
  CHECK(fixture.WaitServed(1));
}

TEST_CASE(
    "A server that does not answer serves nothing, until it names the version or, where it cannot, has loaded it") {
  Fixture fixture;
  fixture.With([](TestServer& server) { server.questions = 0; });
  REQUIRE(fixture.Serve("full").status.ok());
  const auto ask = [&](const Status& answers) {
    const int asked = fixture.With([&](TestServer& server) {
      server.answers = answers;
      server.questions = 1;
      return server.asked;
    });
    // It asks the next question once it has taken this answer.
    REQUIRE(Eventually([&] {
      return fixture.With([&](TestServer& server) { return server.asked > asked && server.begun > server.asked; });
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
  CHECK(fixture.loads() == 1);

  fixture.With([](TestServer& server) { server.still_serves = std::nullopt; });
  CHECK(ask(OkStatus()) == 1);
  CHECK(ask(gone) == 0);
  CHECK(fixture.loads() == 1);
  fixture.With([](TestServer& server) {
    server.answers = OkStatus();
    server.questions = 1;
  });
  CHECK(Eventually([&] { return fixture.loads() == 2; }));
  CHECK(fixture.WaitServed(1));
}

TEST_CASE("A server that takes no connection is loaded as soon as it answers, however often it was not there") {
  Fixture fixture;
  const Status gone(ErrorCode::kUnavailable, "connection refused");
  fixture.With([&](TestServer& server) { server.load_status = server.answers = gone; });
  for (int version = 1; version <= 3; ++version) {
    if (version > 1) fixture.replicas.PullDelta(version);
    CHECK(fixture.Serve("full").status.code() == ErrorCode::kUnavailable);
    CHECK(fixture.loads() == version);  // once for each version
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1'300));
  CHECK(fixture.loads() == 3);
  fixture.With([](TestServer& server) { server.load_status = server.answers = OkStatus(); });
  const auto begin = std::chrono::steady_clock::now();
  CHECK(fixture.WaitServed(3));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));
}

}  // namespace
}  // namespace lockstep::engine

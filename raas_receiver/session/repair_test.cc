// Sessions with replicas that lose bits: what they find, repair and drop, and what engines and operators see of it.
#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>

#include "common/base/status_testing.h"
#include "common/os/file.h"
#include "raas_receiver/engine/drivers/driver_kind.h"
#include "raas_receiver/session/session_fixture.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

// A server: its loads last until `may_end`. One that is deaf does not hear that a load is cancelled.
struct SlowServer {
  std::atomic<bool> may_end = false;
  std::atomic<bool> deaf = false;
  std::atomic<Version> loading = 0;
  std::atomic<Version> last_good = 0;  // of the load last begun
};

class SlowDriver : public engine::EngineDriver {
 public:
  explicit SlowDriver(SlowServer& server) : engine::EngineDriver(*engine::FindDriverKind("vllm")), server_(server) {}

  engine::LoadOutcome Load(const engine::EngineVersion& version,
                           const std::optional<engine::EngineVersion>& last_good) override {
    server_.last_good = last_good ? last_good->held.version : 0;
    server_.loading = version.held.version;
    while (!server_.may_end) std::this_thread::sleep_for(milliseconds(1));
    return {OkStatus(), engine::Serving::kNew};
  }
  Status Pause(const engine::EngineVersion&) override { return OkStatus(); }
  Status Resume(const engine::EngineVersion&) override { return OkStatus(); }
  Result<std::optional<bool>> StillServes(const engine::EngineVersion&) override { return std::optional(true); }
  void Cancel() override {
    if (!server_.deaf) server_.may_end = true;
  }
  void Reset() override {}
  uint64_t failures() const override { return 0; }

 private:
  SlowServer& server_;
};

Status RefuseFirst(const wire::BlockRequest& request) {
  return request.exact_version == 1 ? Status(ErrorCode::kNotFound, "version 1 is gone") : OkStatus();
}

}  // namespace

// A session that hashes what it holds all the time.
struct ScrubbedFixture : SessionFixture {
  ScrubbedFixture() { options.scrub_round = milliseconds(20); }
  void FlipCurrent(int from_end = 100) const {
    replica::ReplicaFixture::FlipByte(pair->current().path + "/model.safetensors", from_end);
  }
  // How the first repair went of a bit that flips in the current version.
  v1::SyncRecord RepairAfterFlip() {
    const auto records = feed.Subscribe("actor");
    FlipCurrent();
    v1::SyncRecord record;
    while (record.mode() != "repair") REQUIRE(records->Next(kForEver, record));
    return record;
  }
};

TEST_CASE("A bit that flips in what is held is found, repaired with one block of the agent's, and counted") {
  ScrubbedFixture fixture;
  fixture.options.follow = GENERATE(true, false);  // either way it is not for a sync to find it
  const auto records = fixture.feed.Subscribe("actor");
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  fixture.WaitHeld(1);
  const std::string file = fixture.pair->current().path + "/model.safetensors";
  const std::string before = replica::ReplicaFixture::FileText(file);
  std::ifstream reader(file);  // a reader keeps the file that it has: another takes its place
  replica::ReplicaFixture::FlipByte(file);
  fixture.WaitFor([&] { return fixture.Describe().damaged_blocks() > 0 && fixture.Describe().last_error().empty(); });
  fixture.WaitHeld(1);
  CHECK(fixture.Describe().repaired_blocks() == 1);
  CHECK(fixture.Describe().scrubbed_bytes() > 0);
  CHECK(fixture.Describe().previous().version() == 0);  // the damaged one can not be rolled back to
  CHECK(fixture.agent.last_outcome == "ok");
  CHECK(std::string(std::istreambuf_iterator<char>(reader), {}) != before);
  v1::SyncRecord record;
  while (record.mode() != "repair") REQUIRE(records->Next(kForEver, record));
  CHECK(record.from().version() == 1);
  CHECK(record.to().version() == 1);
  CHECK(record.payload_bytes() <= fixture.replicas.model.layout()->block_bytes());
  fixture.agent.Publish();
  REQUIRE(fixture.Pull().ok());
  fixture.WaitHeld(2);
}

TEST_CASE("A block that the other replica has whole is repaired from there, and the agent is not asked") {
  ScrubbedFixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  REQUIRE(fixture.Pull(true).ok());  // no delta leads from the one replica to the other
  const v1::SyncRecord record = fixture.RepairAfterFlip();
  CHECK(record.error().empty());
  CHECK(record.repaired_blocks() == 0);
  CHECK(fixture.agent.pulls_opened == 2);
  fixture.WaitHeld(1);
  CHECK(fixture.Describe().damaged_blocks() == 1);
}

TEST_CASE("What is held is looked after also while syncs fail") {
  ScrubbedFixture fixture;
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.agent.Publish();
  fixture.WaitHeld(2);
  fixture.agent.twist = [](v1::PullPlan& plan) { plan.clear_tickets(); };
  fixture.agent.Publish();
  fixture.WaitFor([&] { return fixture.Describe().state() == v1::SESSION_STATE_BACKING_OFF; });
  const std::string damaged = fixture.pair->current().path;
  const int64_t last_sync = fixture.Describe().last_sync_unix_ns();
  replica::ReplicaFixture::FlipByte(damaged + "/model.safetensors");
  fixture.WaitFor([&] { return fixture.Describe().damaged_blocks() == 1; });
  fixture.WaitFor([&] { return fixture.pair->current().path != damaged; });  // a delta led from the other one
  fixture.Check(2);
  fixture.WaitFor([&] { return fixture.Describe().last_error().find("grants 0 lanes") != std::string::npos; });
  CHECK(fixture.Describe().last_sync_unix_ns() == last_sync);
  fixture.Stop();
}

TEST_CASE("A damaged block is not asked of an agent that is at another run, which is not told that it is damaged") {
  ScrubbedFixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  std::atomic<int> requests = 0;
  fixture.agent.refuse_full = [&](const wire::BlockRequest&) {
    ++requests;
    return OkStatus();
  };
  fixture.agent.twist = [](v1::PullPlan& plan) { plan.mutable_target()->set_run(std::string(16, 'r')); };
  const v1::SyncRecord record = fixture.RepairAfterFlip();
  CHECK_THAT(record.error(), Catch::Contains("of version 1 is damaged, and 127.0.0.1:") &&
                                 Catch::EndsWith("has another run by now; pull that"));
  CHECK(requests == 0);
  CHECK_FALSE(fixture.agent.last_damaged);
  CHECK(fixture.pair->current().held == fixture.replicas.model.held(1));
  fixture.Stop();
}

TEST_CASE("An agent that plans no full pull for damaged blocks is not believed, and asked again later") {
  ScrubbedFixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  std::atomic<bool> lies = true;
  fixture.agent.twist = [&](v1::PullPlan& plan) {
    if (!lies) return;
    plan.clear_tickets();
    plan.set_mode(v1::PULL_MODE_UP_TO_DATE);
  };
  const v1::SyncRecord record = fixture.RepairAfterFlip();
  CHECK_THAT(record.error(), Catch::Contains("was asked for a full pull, and plans up_to_date"));
  CHECK_FALSE(fixture.session->HoldsVersion());
  lies = false;
  fixture.WaitFor([&] { return fixture.session->HoldsVersion(); });
  fixture.Check(1);
  fixture.Stop();
}

TEST_CASE("A bit that flips in the version before is found, and that version is dropped") {
  ScrubbedFixture fixture;
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.agent.Publish();
  fixture.WaitHeld(2);
  replica::ReplicaFixture::FlipByte(fixture.pair->previous().path + "/model.safetensors");
  fixture.WaitFor([&] { return fixture.Describe().previous().version() == 0; });
  CHECK(fixture.Describe().damaged_blocks() == 1);
  fixture.WaitFor([&] { return fixture.Describe().last_error().empty(); });  // nothing damaged is held any more
  CHECK_THAT(fixture.Rollback(), FailsWith(ErrorCode::kState, "nothing to roll back to"));
  fixture.agent.Publish();
  fixture.WaitHeld(3);
}

TEST_CASE("The load of a version that is found damaged is cancelled, and no rollback leads to that version") {
  ScrubbedFixture fixture;
  const auto file = [&](const std::string& name) { return fixture.replicas.root.File(name); };
  fixture.engine = {
      .kind = "hook",
      .command = "touch " + file("loads") + "; while ! test -e " + file("may-end") + "; do sleep 0.01; done",
      .attempts = 1};
  fixture.agent.refuse_full = RefuseFirst;
  fixture.Start();
  fixture.WaitFor([&] { return os::ReadFile(file("loads")).ok(); });
  fixture.FlipCurrent();
  fixture.WaitFor([&] { return fixture.Describe().damaged_blocks() > 0 && fixture.Describe().failures() > 0; });
  fixture.agent.Publish();
  fixture.WaitFor([&] { return fixture.pair->current().held.version == 2 && fixture.Describe().syncs() == 2; });
  fixture.WaitFor([&] { return fixture.Describe().previous().version() == 0; });
  CHECK_THAT(fixture.Rollback(), FailsWith(ErrorCode::kState, "nothing to roll back to"));
  REQUIRE(os::WriteFileAtomic(file("may-end"), "").ok());
  fixture.WaitFor([&] { return fixture.Describe().served_version() == 2; });
  fixture.Stop();
}

// `server` loads version 1, which is found damaged meanwhile; version 2 comes.
static void LoadDamaged(ScrubbedFixture& fixture, SlowServer& server) {
  fixture.agent.refuse_full = RefuseFirst;
  fixture.driver = std::make_unique<SlowDriver>(server);
  fixture.Start();
  fixture.WaitFor([&] { return server.loading == 1; });
  fixture.FlipCurrent();
  fixture.WaitFor([&] { return fixture.Describe().damaged_blocks() > 0 && fixture.Describe().failures() > 0; });
  fixture.agent.Publish();
  fixture.WaitFor([&] { return fixture.pair->current().held.version == 2 && fixture.Describe().syncs() == 2; });
}

TEST_CASE("A server that fails to load the next version is not to return to one that was found damaged") {
  SlowServer server;
  ScrubbedFixture fixture;
  LoadDamaged(fixture, server);
  server.may_end = true;
  fixture.WaitFor([&] { return server.loading == 2; });
  CHECK(server.last_good == 0);
  fixture.WaitFor([&] { return fixture.session->Ready(); });
  fixture.Stop();
}

TEST_CASE("A damaged version is not dropped while a server reads it") {
  SlowServer server;
  server.deaf = true;
  ScrubbedFixture fixture;
  LoadDamaged(fixture, server);
  std::this_thread::sleep_for(milliseconds(100));  // in which it would be dropped
  const Version kept = fixture.pair->previous().held.version;
  server.may_end = true;
  CHECK(kept == 1);
  fixture.WaitFor([&] { return fixture.pair->previous().held.nothing(); });
  fixture.Stop();
}

TEST_CASE("A session with a damaged version is not ready, and has no verified replica, until it has another version") {
  ScrubbedFixture fixture;
  fixture.agent.refuse_full = RefuseFirst;
  fixture.Start();
  fixture.WaitHeld(1);
  CHECK(fixture.session->Ready());
  fixture.FlipCurrent();
  fixture.WaitFor([&] { return fixture.Describe().failures() > 0; });
  CHECK_FALSE(fixture.session->HoldsVersion());
  CHECK_FALSE(fixture.session->Ready());
  fixture.agent.Publish();
  fixture.WaitFor([&] { return fixture.session->Ready(); });
  CHECK(fixture.session->HoldsVersion());
  fixture.WaitHeld(2);
  fixture.Stop();
}

// Without a scrub, whose turn would come too late.
TEST_CASE("A replica that a sync finds damaged is no version's base, and no rollback leads to it") {
  SessionFixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  replica::ReplicaFixture::FlipByte(fixture.pair->current().path + "/model.safetensors");  // that no delta touches
  fixture.agent.Publish();
  REQUIRE(fixture.Pull().ok());  // version 2, with a block fetched in full
  CHECK(fixture.Describe().damaged_blocks() == 1);
  fixture.WaitHeld(2);
  CHECK_THAT(fixture.Rollback(), FailsWith(ErrorCode::kState, "nothing to roll back to"));
  for (Version version = 3; version <= 5; ++version) {
    fixture.agent.Publish();
    REQUIRE(fixture.Pull().ok());
    fixture.WaitHeld(version);
  }
  CHECK(fixture.Describe().last_error().empty());
  fixture.Stop();
}

TEST_CASE("What an operator's verify or an archive's copy finds damaged is repaired") {
  const bool verify = GENERATE(true, false);
  SessionFixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  const std::string damaged = fixture.pair->current().path;
  replica::ReplicaFixture::FlipByte(damaged + "/model.safetensors");
  if (verify) {
    CHECK(fixture.session->Verify()->bad_blocks.size() == 1);
  } else {
    Bytes copy(fixture.replicas.model.layout()->data_bytes());
    CHECK_THAT(fixture.pair->CopyCurrent(0, copy), FailsWith(ErrorCode::kCorrupt, "is damaged"));
  }
  fixture.WaitFor([&] { return fixture.pair->current().path != damaged && fixture.session->HoldsVersion(); });
  fixture.WaitHeld(1);
  CHECK(fixture.Describe().repaired_blocks() == 1);
  fixture.Stop();
}

TEST_CASE("An engine that loaded a version which is found damaged at the next start is told again") {
  SessionFixture fixture;
  const std::string told = fixture.replicas.root.File("told");
  fixture.engine = {.kind = "hook", .command = "echo $LOCKSTEP_VERSION >> " + told, .attempts = 1};
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().served_version() == 1; });
  const std::string file = fixture.pair->current().path + "/model.safetensors";
  fixture.Stop();
  replica::ReplicaFixture::FlipByte(file);
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().served_version() == 1; });
  CHECK(*os::ReadFile(told) == "1\n1\n");
  CHECK(fixture.Describe().damaged_blocks() == 1);
  fixture.Stop();
}

TEST_CASE("An engine is not given a version that was found damaged") {
  ScrubbedFixture fixture;
  const auto file = [&](const std::string& name) { return fixture.replicas.root.File(name); };
  fixture.engine = {.kind = "hook",
                    .command = "test -e " + file("may-load") + " || exit 1; echo $LOCKSTEP_VERSION >> " + file("told"),
                    .attempts = 1};
  fixture.agent.refuse_full = RefuseFirst;
  const auto begun = std::chrono::steady_clock::now();
  fixture.Start();
  fixture.WaitFor([&] { return fixture.pair->current().held.version == 1; });
  fixture.FlipCurrent();
  fixture.WaitFor([&] { return fixture.Describe().damaged_blocks() > 0 && fixture.Describe().failures() > 0; });
  REQUIRE(os::WriteFileAtomic(file("may-load"), "").ok());
  // In which it would be tried again: its first wait is 1 s at most, and each is at most twice as long as the last.
  std::this_thread::sleep_for(2 * (std::chrono::steady_clock::now() - begun) + milliseconds(1'100));
  fixture.agent.Publish();
  fixture.WaitFor([&] { return fixture.Describe().served_version() == 2; });
  CHECK(*os::ReadFile(file("told")) == "2\n");
  fixture.Stop();
}

TEST_CASE("A version that was rolled back to and is damaged is repaired, and stays") {
  ScrubbedFixture fixture;
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.agent.Publish();
  fixture.WaitHeld(2);
  REQUIRE(fixture.Rollback().ok());
  fixture.agent.lanes().version_of = [](BlockIndex) { return Version{1}; };  // it still has it
  fixture.FlipCurrent(5000);                                                 // which version 2 has changed
  fixture.WaitFor([&] { return fixture.Describe().repaired_blocks() == 1; });
  fixture.WaitFor([&] { return fixture.Describe().state() == v1::SESSION_STATE_HELD; });
  fixture.Check(1);
}

}  // namespace lockstep::session

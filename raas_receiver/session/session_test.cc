#include "raas_receiver/session/session.h"

#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "common/base/status_testing.h"
#include "common/os/file.h"
#include "raas_receiver/replica/replica_fixture.h"
#include "raas_receiver/session/test_agent.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kForEver = std::chrono::minutes(1);  // more than a busy machine needs

// A session on a directory of its own, following a TestAgent.
struct Fixture {
  replica::ReplicaFixture replicas;
  SyncFeed feed;
  net::IoThreads io{2, [](std::string_view what) { WARN(std::string(what)); }};
  TestAgent agent{replicas.model};
  SessionOptions options{
      .model = "actor", .receiver = "test", .agent = agent.address(), .lanes = 2, .follow = true, .engine = {}};
  engines::EngineOptions engine;
  std::unique_ptr<Session> session;
  replica::ReplicaPair* pair = nullptr;

  void Start() {
    replicas.Open();
    pair = replicas.opened.get();
    auto driver = engines::NewEngineDriver(engine);
    REQUIRE(driver.ok());
    session =
        std::make_unique<Session>(options, std::move(replicas.opened), *std::move(driver), io, replicas.pool, feed);
    session->Start();
  }
  void Stop() {
    session->RequestStop();
    session->Join(std::chrono::seconds(5));
    session.reset();
  }
  template <typename Condition>
  void WaitFor(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + kForEver;
    while (!condition()) {
      INFO(session->Describe().ShortDebugString());
      REQUIRE(std::chrono::steady_clock::now() < until);
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
  void WaitHeld(Version version) {
    WaitFor([&] { return pair->current().held.version == version && Describe().state() == v1::SESSION_STATE_WAITING; });
    Check(version);
  }
  // The published file and its hashes are those of `version`.
  void Check(Version version) {
    CHECK(pair->current().held == replicas.model.held(version));
    CHECK(replica::ReplicaFixture::FileBytes(replicas.ModelPath("current/model.safetensors")) ==
          replica::ReplicaFixture::Image(replicas.model, version));
    CHECK(session->Verify()->bad_blocks.empty());
  }
  v1::ReceiverModel Describe() const { return session->Describe(); }
  Result<v1::SyncRecord> Pull(bool force_full = false) {
    return session->Pull(force_full, kForEver, [] { return false; });
  }
  Result<v1::ReceiverModel> Rollback() {
    return session->Rollback([] { return false; });
  }
  // Damages the replica that the next delta will bring forward, in the first block that it changes.
  void DamageTarget(Version base) {
    const BlockIndex block = replicas.model.DeltaBlocks(base, base + 1)[0].block;
    pair->target_block(block)[1] ^= std::byte{1};
  }
};

}  // namespace

TEST_CASE("A session follows its agent: the first version in full, then deltas, then nothing when nothing is new") {
  Fixture fixture;
  const auto records = fixture.feed.Subscribe("actor");
  fixture.Start();
  fixture.WaitHeld(1);
  for (Version version = 2; version <= 6; ++version) {
    fixture.agent.Publish();
    fixture.WaitHeld(version);
  }
  for (Version version = 1; version <= 6; ++version) {
    v1::SyncRecord record;
    REQUIRE(records->Next(milliseconds(0), record));
    CHECK(record.mode() == (version == 1 ? "full" : "delta"));
    CHECK(record.from().version() == version - 1);
    CHECK(record.to().version() == version);
    CHECK(record.verified());
    CHECK(record.error().empty());
    CHECK(record.manifest_digest() == ToHex(fixture.replicas.model.manifest(version).digest));
  }
  CHECK(fixture.agent.pulls_opened == 6);
  CHECK(fixture.agent.pulls_closed == 6);
  CHECK(fixture.agent.last_outcome == "ok");
  CHECK(fixture.Describe().served_version() == 6);
  fixture.Stop();
}

TEST_CASE("A bit that flips in what is held is found, mended with one block of the agent's, and counted") {
  Fixture fixture;
  fixture.options.scrub_round = milliseconds(20);
  fixture.options.follow = GENERATE(true, false);  // either way it is not for a sync to find it
  const auto records = fixture.feed.Subscribe("actor");
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  fixture.WaitHeld(1);
  const std::string file = fixture.pair->current().path + "/model.safetensors";
  const std::string before = replica::ReplicaFixture::FileText(file);
  std::ifstream reader(file);  // whoever has the file keeps what he has: another takes its place
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

TEST_CASE("A bit that flips in the version before is found, and that version is given up") {
  Fixture fixture;
  fixture.options.scrub_round = milliseconds(20);
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.agent.Publish();
  fixture.WaitHeld(2);
  replica::ReplicaFixture::FlipByte(fixture.pair->previous().path + "/model.safetensors");
  fixture.WaitFor([&] { return fixture.Describe().previous().version() == 0; });
  CHECK(fixture.Describe().damaged_blocks() == 1);
  CHECK_THAT(fixture.Rollback(), FailsWith(ErrorCode::kState, "nothing to roll back to"));
  fixture.agent.Publish();
  fixture.WaitHeld(3);
}

TEST_CASE("A version that was rolled back to and is damaged is mended, and stays") {
  Fixture fixture;
  fixture.options.scrub_round = milliseconds(20);
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.agent.Publish();
  fixture.WaitHeld(2);
  REQUIRE(fixture.Rollback().ok());
  fixture.agent.lanes().version_of = [](BlockIndex) { return Version{1}; };  // it still has it
  replica::ReplicaFixture::FlipByte(fixture.pair->current().path + "/model.safetensors");
  fixture.WaitFor([&] { return fixture.Describe().repaired_blocks() == 1; });
  fixture.WaitFor([&] { return fixture.Describe().state() == v1::SESSION_STATE_HELD; });
  fixture.Check(1);
}

TEST_CASE("Each sync leaves the spans of its states, under its pull's id, one after another") {
  Fixture fixture;
  telemetry::Timeline timeline;
  fixture.options.timeline = &timeline;
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.agent.Publish();
  fixture.WaitHeld(2);
  CHECK(fixture.Pull()->mode() == "up_to_date");
  fixture.Stop();
  const auto names = [&](Version version) {
    std::vector<std::string> names;
    for (const telemetry::Span& span : timeline.Select("actor", version)) names.emplace_back(span.name);
    return names;
  };
  CHECK(names(1) == std::vector<std::string>{"negotiate", "pull", "verify", "apply", "commit"});
  CHECK(names(2) == std::vector<std::string>{"negotiate", "stage", "pull", "verify", "apply", "commit"});
  int64_t last_end = 0;
  for (const telemetry::Span& span : timeline.Select("actor", 2)) {
    CHECK(span.transfer == 2);  // as the test's agent counts pulls
    CHECK(span.begin_unix_ns <= span.end_unix_ns);
    if (span.name == "stage") continue;  // inside pull
    CHECK(span.begin_unix_ns >= last_end - 1'000'000);
    last_end = span.end_unix_ns;
    if (span.name != "pull") continue;
    uint64_t sent = 0;
    for (const payload::DeltaBlock& block : fixture.replicas.model.DeltaBlocks(1, 2)) sent += block.data.size();
    CHECK(span.bytes == sent);
  }
}

TEST_CASE("A session takes deltas while they are made, where the agent has them, and pulls nothing then") {
  Fixture fixture;
  fixture.agent.live = true;
  const auto records = fixture.feed.Subscribe("actor");
  fixture.Start();
  fixture.WaitHeld(1);
  for (Version version = 2; version <= 6; ++version) {
    fixture.agent.Publish();
    fixture.WaitHeld(version);
  }
  for (Version version = 1; version <= 6; ++version) {
    v1::SyncRecord record;
    REQUIRE(records->Next(milliseconds(0), record));
    CHECK(record.verified());
    CHECK(record.live_bytes() == (version == 1 ? 0 : record.payload_bytes()));
  }
  // Two lanes of the full pull, of which one may come too late to be needed, and two live ones.
  CHECK(fixture.agent.lanes().connections() <= 4);
  fixture.Stop();
}

TEST_CASE("What the live lanes spoil is pulled, and the replica is right all the same") {
  Fixture fixture;
  fixture.agent.live = true;
  fixture.agent.lanes().at_frame = 1;
  // The third connection is a live one.
  fixture.agent.lanes().fault_of = [](int lane) {
    return lane == 2 ? pull::Fault::kCorruptPayload : pull::Fault::kNone;
  };
  const auto records = fixture.feed.Subscribe("actor");
  fixture.Start();
  fixture.WaitHeld(1);
  for (Version version = 2; version <= 4; ++version) {
    fixture.agent.Publish();
    fixture.WaitHeld(version);
  }
  v1::SyncRecord record;
  for (Version version = 1; version <= 2; ++version) REQUIRE(records->Next(milliseconds(0), record));
  CHECK(record.to().version() == 2);
  CHECK(record.live_bytes() == 0);
  CHECK(record.payload_bytes() > 0);
  while (records->Next(milliseconds(0), record)) CHECK(record.live_bytes() == record.payload_bytes());
  fixture.Stop();
}

TEST_CASE("A session several versions behind takes a chain") {
  Fixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  for (int i = 0; i < 4; ++i) fixture.agent.Publish();
  const auto record = fixture.Pull();
  REQUIRE(record.ok());
  CHECK(record->mode() == "chain");
  fixture.WaitHeld(5);
  fixture.Stop();
}

TEST_CASE("A session that does not follow syncs only when asked to, and says when there is nothing new") {
  Fixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().newest_version() == 1; });
  CHECK_FALSE(fixture.session->HoldsVersion());
  CHECK(fixture.Pull()->mode() == "full");
  CHECK(fixture.Pull()->mode() == "up_to_date");
  CHECK(fixture.Pull(true)->mode() == "full");
  fixture.WaitHeld(1);
  fixture.Stop();
}

TEST_CASE("A block that does not come out right is fetched in full and counted") {
  Fixture fixture;
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.agent.Publish();
  fixture.WaitHeld(2);
  fixture.DamageTarget(2);
  fixture.agent.Publish();
  fixture.WaitHeld(3);
  CHECK(fixture.Describe().repaired_blocks() >= 1);
  CHECK(fixture.Describe().last_error().empty());
  fixture.Stop();
}

TEST_CASE("A version whose damaged block cannot be had is refused, what is held stays, and the next version is taken") {
  Fixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  fixture.agent.Publish();
  REQUIRE(fixture.Pull().ok());
  fixture.DamageTarget(2);
  fixture.agent.refuse_full = [](const wire::BlockRequest& request) {
    return request.exact_version == 0 ? OkStatus() : Status(ErrorCode::kNotFound, "version 3 is gone");
  };
  fixture.agent.Publish();
  const auto refused = fixture.Pull();
  REQUIRE_THAT(refused, FailsWith(ErrorCode::kNotFound, "version 3 is gone"));
  fixture.Check(2);
  CHECK(fixture.agent.last_outcome.find("version 3 is gone") != std::string::npos);
  CHECK(fixture.Describe().failures() == 1);
  REQUIRE(fixture.Pull().ok());
  fixture.Check(3);
  CHECK(fixture.Describe().last_error().empty());
  fixture.Stop();
}

TEST_CASE("A delta that does not lead to the digest it names is not applied") {
  Fixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  fixture.agent.Publish();
  REQUIRE(fixture.Pull().ok());
  fixture.agent.Publish();
  fixture.agent.twist = [](v1::PullPlan& plan) {
    plan.set_target_digest(std::string(16, 'x'));
    plan.mutable_steps(0)->set_target_digest(std::string(16, 'x'));
  };
  CHECK(fixture.Pull().status().code() == ErrorCode::kCorrupt);
  fixture.Check(2);
  CHECK(fixture.pair->previous().held.version == 1);
  fixture.agent.twist = [](v1::PullPlan&) {};
  REQUIRE(fixture.Pull().ok());
  fixture.Check(3);
  fixture.Stop();
}

TEST_CASE("A full pull that the trainer overtakes ends at one version, whatever versions its blocks are of") {
  Fixture fixture;
  fixture.options.follow = false;
  fixture.agent.lanes().version_of = [](BlockIndex block) { return Version{1} + block % 4; };
  fixture.agent.catch_up_target = [] { return Version{5}; };
  fixture.Start();
  const auto record = fixture.Pull();
  INFO(record.status().ToString());
  REQUIRE(record.ok());
  CHECK(record->mode() == "full");
  CHECK(record->to().version() == 5);
  fixture.Check(5);
  fixture.Stop();
}

TEST_CASE("Blocks that no step starts from are fetched again") {
  Fixture fixture;
  fixture.options.follow = false;
  fixture.agent.lanes().version_of = [](BlockIndex block) { return block % 3 == 0 ? Version{7} : Version{1}; };
  fixture.agent.catch_up_target = [] { return Version{5}; };
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  fixture.Check(5);
  fixture.Stop();
}

TEST_CASE("After a rollback the session holds until a pull, which needs no bytes when the version is still there") {
  Fixture fixture;
  fixture.Start();
  fixture.WaitHeld(1);
  CHECK(fixture.Rollback().status().code() == ErrorCode::kState);
  fixture.agent.Publish();
  fixture.WaitHeld(2);
  const auto back = fixture.Rollback();
  REQUIRE(back.ok());
  CHECK(back->held().version() == 1);
  CHECK(back->previous().version() == 2);
  fixture.WaitFor([&] { return fixture.Describe().state() == v1::SESSION_STATE_HELD; });
  fixture.Check(1);
  const auto record = fixture.Pull();
  REQUIRE(record.ok());
  CHECK(record->payload_bytes() == 0);
  fixture.WaitHeld(2);
  REQUIRE(fixture.Rollback().ok());
  fixture.agent.Publish();
  std::this_thread::sleep_for(milliseconds(100));
  fixture.Check(1);
  fixture.agent.twist = [](v1::PullPlan& plan) { plan.clear_tickets(); };
  CHECK_FALSE(fixture.Pull().ok());  // changes nothing
  fixture.WaitFor([&] { return fixture.Describe().state() == v1::SESSION_STATE_HELD; });
  fixture.Check(1);
  fixture.agent.twist = [](v1::PullPlan&) {};
  REQUIRE(fixture.Pull().ok());
  fixture.WaitHeld(3);
  fixture.Stop();
}

TEST_CASE("A failing hook leaves the version held but not served, is tried again, and is notified of the next one") {
  Fixture fixture;
  fixture.engine = {
      .kind = "hook", .command = "test \"$LOCKSTEP_VERSION\" != 2", .attempts = 2, .first_backoff = milliseconds(1)};
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.agent.Publish();
  fixture.WaitHeld(2);
  fixture.WaitFor(
      [&] { return fixture.Describe().engine_failures() >= 4 && !fixture.Describe().last_error().empty(); });
  CHECK(fixture.Describe().served_version() == 1);
  CHECK(fixture.Describe().last_error_unix_ns() > 0);
  fixture.agent.Publish();
  fixture.WaitHeld(3);
  CHECK(fixture.Describe().served_version() == 3);
  fixture.WaitFor([&] { return fixture.Describe().last_error().empty(); });
  fixture.Stop();
}

TEST_CASE("A receiver that comes back without having notified its engine does so then") {
  Fixture fixture;
  fixture.engine = {.kind = "hook", .command = "false", .attempts = 1};
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.Stop();
  fixture.engine = {.kind = "hook", .command = "test \"$LOCKSTEP_MODE\" = recovered", .attempts = 1};
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().served_version() == 1; });
  fixture.Stop();
}

TEST_CASE("A hook that works at last has worked, without a newer version") {
  Fixture fixture;
  const std::string flag = fixture.replicas.root.File("flag");
  fixture.engine = {.kind = "hook", .command = "test -e " + flag, .attempts = 1};
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().engine_failures() >= 1; });
  CHECK(fixture.Describe().served_version() == 0);
  REQUIRE(os::WriteFileAtomic(flag, "").ok());
  fixture.WaitFor([&] { return fixture.Describe().served_version() == 1; });
  fixture.WaitFor([&] { return fixture.Describe().last_error().empty(); });
  fixture.Stop();
}

// A hook that says what it was told, waits until it may go on, and fails if its version is not whole then.
struct SlowHook {
  explicit SlowHook(Fixture& fixture) : fixture(fixture), calls(fixture.replicas.root.File("calls")) {
    fixture.engine = {
        .kind = "hook",
        .command = "echo $LOCKSTEP_VERSION >> " + calls + "; while ! test -e " + File("$LOCKSTEP_VERSION") +
                   "; do sleep 0.01; done; cmp $LOCKSTEP_PATH/model.safetensors " + File("$LOCKSTEP_VERSION"),
        .attempts = 1};
  }
  std::string File(const std::string& version) const { return fixture.replicas.root.File("image-" + version); }
  void WaitForCall(Version version) {
    fixture.WaitFor([&] {
      const auto said = os::ReadFile(calls);
      return said.ok() && said->ends_with(std::to_string(version) + "\n");
    });
  }
  void Release(Version version) {
    const auto image = replica::ReplicaFixture::Image(fixture.replicas.model, version);
    REQUIRE(os::WriteFileAtomic(File(std::to_string(version)), image).ok());
  }

  Fixture& fixture;
  const std::string calls;
};

TEST_CASE("A pull is answered with what the hook of its version said, however long that took") {
  Fixture fixture;
  fixture.options.follow = false;
  SlowHook hook(fixture);
  fixture.Start();
  auto answer = std::async(std::launch::async, [&] { return fixture.Pull(); });
  hook.WaitForCall(1);
  CHECK(answer.wait_for(milliseconds(200)) == std::future_status::timeout);
  REQUIRE(os::WriteFileAtomic(hook.File("1"), "another").ok());
  const auto record = answer.get();
  REQUIRE(record.ok());
  CHECK(record->mode() == "full");
  CHECK_FALSE(record->engine_error().empty());
}

TEST_CASE("While a hook runs the next version is committed, and the one that it loads stays whole") {
  Fixture fixture;
  SlowHook hook(fixture);
  fixture.Start();
  hook.WaitForCall(1);
  fixture.agent.Publish();
  fixture.WaitFor([&] { return fixture.pair->current().held.version == 2; });
  fixture.agent.Publish();
  fixture.WaitFor([&] { return fixture.Describe().state() == v1::SESSION_STATE_NOTIFYING; });
  CHECK(replica::ReplicaFixture::FileBytes(fixture.replicas.ModelPath("v1/model.safetensors")) ==
        replica::ReplicaFixture::Image(fixture.replicas.model, 1));
  SECTION("and the one after that is pulled once it has ended") {
    hook.Release(1);
    hook.WaitForCall(3);  // of 2 nobody needs to know any more
    CHECK(fixture.Describe().served_version() == 1);
    hook.Release(3);
    fixture.WaitHeld(3);
    CHECK(fixture.Describe().served_version() == 3);
    fixture.WaitFor([&] { return fixture.Describe().last_error().empty(); });
  }
  SECTION("and a rollback returns to it, for a pull to go on") {
    std::thread release([&] { hook.Release(1); });
    CHECK(fixture.Rollback().ok());
    release.join();
    fixture.WaitFor([&] { return fixture.Describe().state() == v1::SESSION_STATE_HELD; });
    fixture.Check(1);
    CHECK(fixture.Describe().served_version() == 1);
    hook.Release(3);
    CHECK(fixture.Pull().ok());
    fixture.WaitHeld(3);
    CHECK(fixture.Describe().served_version() == 3);
  }
  SECTION("and the end of the receiver waits for it") {
    hook.Release(1);
    hook.Release(2);
    hook.Release(3);
  }
  fixture.Stop();
}

TEST_CASE("A full pull while a hook runs leaves the directory that it loads") {
  Fixture fixture;
  SlowHook hook(fixture);
  fixture.Start();
  hook.WaitForCall(1);
  const std::string loaded = fixture.pair->current().path;
  Result<v1::SyncRecord> record = Status(ErrorCode::kInternal, "not asked");
  std::thread pull([&] { record = fixture.Pull(true); });
  fixture.WaitFor([&] { return fixture.pair->current().path != loaded; });
  CHECK(replica::ReplicaFixture::FileBytes(loaded + "/model.safetensors") ==
        replica::ReplicaFixture::Image(fixture.replicas.model, 1));
  hook.Release(1);
  pull.join();
  REQUIRE(record.ok());
  CHECK(record->mode() == "full");
  fixture.WaitHeld(1);
  CHECK(fixture.Describe().served_version() == 1);
  fixture.Stop();
}

TEST_CASE("The agent is told what is held, what the engine serves and the last error, as soon as that changes") {
  Fixture fixture;
  fixture.options.instance = std::string(16, 'i');
  fixture.engine = {
      .kind = "hook", .command = "test \"$LOCKSTEP_VERSION\" != 2 || { echo engine says no; exit 1; }", .attempts = 1};
  fixture.Start();
  const auto told = [&](Version held, Version served) {
    const v1::ReportRequest report = fixture.agent.last_report();
    return report.held().version() == held && report.served_version() == served;
  };
  fixture.WaitFor([&] { return told(1, 1); });
  CHECK(fixture.agent.last_report().receiver() == "test");
  CHECK(fixture.agent.last_report().instance() == std::string(16, 'i'));
  CHECK(fixture.agent.last_report().last_error().empty());
  fixture.agent.Publish();
  fixture.WaitFor([&] { return told(2, 1) && !fixture.agent.last_report().last_error().empty(); });
  CHECK(fixture.agent.last_report().last_error().find("engine says no") != std::string::npos);
  fixture.agent.Publish();
  fixture.WaitFor([&] { return told(3, 3) && fixture.agent.last_report().last_error().empty(); });
  fixture.Stop();
}

TEST_CASE("A model that the agent does not have is the last error, with those that it has") {
  Fixture fixture;
  fixture.agent.open_models = {"critic", "reward"};
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().last_error().ends_with(" has no actor; it has critic, reward"); });
  fixture.Stop();
}

TEST_CASE("A session's thread is seen to get on while it waits, and not once it has ended") {
  Fixture fixture;
  fixture.Start();
  fixture.WaitHeld(1);
  for (int i = 0; i < 3; ++i) fixture.WaitFor([&] { return fixture.session->Turned(); });
  fixture.session->RequestStop();
  fixture.session->Join(kForEver);
  (void)fixture.session->Turned();
  CHECK_FALSE(fixture.session->Turned());
}

TEST_CASE(
    "A session is ready once it holds a version that its engine serves, and stays so when that refuses the next") {
  Fixture fixture;
  const std::string flag = fixture.replicas.root.File("flag");
  fixture.engine = {
      .kind = "hook", .command = "test $LOCKSTEP_VERSION = 1 && test -e " + flag, .attempts = 1, .first_backoff = {}};
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().engine_failures() >= 1; });
  CHECK_FALSE(fixture.session->Ready());
  REQUIRE(os::WriteFileAtomic(flag, "").ok());
  fixture.WaitFor([&] { return fixture.session->Ready(); });
  fixture.agent.Publish();
  fixture.WaitFor([&] { return fixture.Describe().last_error().find("version 2") != std::string::npos; });
  CHECK(fixture.session->Ready());
  fixture.Stop();
}

TEST_CASE("An agent that takes no reports is followed all the same") {
  Fixture fixture;
  fixture.agent.takes_reports = false;
  fixture.Start();
  fixture.WaitHeld(1);
  CHECK(fixture.Describe().last_error().empty());
  fixture.Stop();
}

TEST_CASE("Stopping ends a stalled pull at once") {
  Fixture fixture;
  fixture.agent.lanes().fault_of = [](int) { return pull::Fault::kStall; };
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().state() == v1::SESSION_STATE_PULLING; });
  const auto begin = std::chrono::steady_clock::now();
  fixture.Stop();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));  // a lane's silence takes 30 s
}

TEST_CASE("Without an agent a session waits, and a pull says what is wrong") {
  Fixture fixture;
  fixture.options.agent = net::HostPort{"127.0.0.1", 1};
  fixture.Start();
  const auto record = fixture.Pull();
  CHECK_THAT(record, FailsWith(ErrorCode::kUnavailable, "127.0.0.1:1"));
  CHECK(fixture.Describe().last_error().find("127.0.0.1:1") != std::string::npos);
  fixture.Stop();
}

}  // namespace lockstep::session

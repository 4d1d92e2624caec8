#include <catch2/catch.hpp>
#include <thread>

#include "common/base/status_testing.h"
#include "raas_receiver/session/session_fixture.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

}  // namespace

TEST_CASE("A session follows its agent: the first version in full, then deltas, then nothing when nothing is new") {
  SessionFixture fixture;
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

TEST_CASE("A session takes deltas while they are made, where the agent has them, and pulls nothing then") {
  SessionFixture fixture;
  fixture.agent.streaming = true;
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
    CHECK(record.streamed_bytes() == (version == 1 ? 0 : record.payload_bytes()));
  }
  // Two lanes of the full pull, of which one may come too late to be needed, and two of the standing pull.
  CHECK(fixture.agent.lanes().connections() <= 4);
  fixture.Stop();
}

TEST_CASE("What the standing lanes spoil is pulled, and the replica is right all the same") {
  SessionFixture fixture;
  fixture.agent.streaming = true;
  fixture.agent.lanes().at_frame = 1;
  // The third connection is the standing pull's.
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
  CHECK(record.streamed_bytes() == 0);
  CHECK(record.payload_bytes() > 0);
  while (records->Next(milliseconds(0), record)) CHECK(record.streamed_bytes() == record.payload_bytes());
  fixture.Stop();
}

TEST_CASE("A session several versions behind takes a chain") {
  SessionFixture fixture;
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
  SessionFixture fixture;
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
  SessionFixture fixture;
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

TEST_CASE("A version is refused when a damaged block cannot be fetched; the held one stays, and the next is taken") {
  SessionFixture fixture;
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

TEST_CASE("A version is refused when a damaged block is fetched and comes with other bytes than promised") {
  SessionFixture fixture;
  fixture.options.follow = false;
  std::atomic<pull::Fault> fault = pull::Fault::kNone;
  fixture.agent.lanes().at_frame = 0;
  fixture.agent.lanes().fault_of = [&](int) { return fault.load(); };
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  fixture.agent.Publish();
  REQUIRE(fixture.Pull().ok());
  fixture.DamageTarget(2);
  fixture.agent.Publish();
  fault = pull::Fault::kOtherBytes;
  CHECK_THAT(fixture.Pull(), FailsWith(ErrorCode::kCorrupt, "even when fetched in full"));
  fixture.Check(2);
  fault = pull::Fault::kNone;
  REQUIRE(fixture.Pull().ok());
  fixture.Check(3);
  fixture.Stop();
}

TEST_CASE("A full pull of blocks that do not give the digest it names is refused") {
  SessionFixture fixture;
  fixture.options.follow = false;
  fixture.agent.twist = [](v1::PullPlan& plan) { plan.set_target_digest(std::string(16, 'x')); };
  fixture.Start();
  CHECK_THAT(fixture.Pull(), FailsWith(ErrorCode::kCorrupt, "do not give the digest of its manifest"));
  CHECK_FALSE(fixture.session->HoldsVersion());
  fixture.Stop();
}

TEST_CASE("An agent that calls a version up to date by another digest than is held is not believed") {
  SessionFixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  fixture.agent.Publish();
  fixture.agent.twist = [&](v1::PullPlan& plan) {
    plan.Clear();
    plan.set_mode(v1::PULL_MODE_UP_TO_DATE);
    *plan.mutable_target() = origin::ToProto(fixture.replicas.model.held(1));
    plan.set_target_digest(std::string(16, 'x'));
  };
  CHECK_THAT(fixture.Pull(), FailsWith(ErrorCode::kProtocol, "names another digest for it than what is held"));
  fixture.Check(1);
  fixture.Stop();
}

TEST_CASE("A delta that does not lead to the digest it names is not applied") {
  SessionFixture fixture;
  fixture.options.follow = false;
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  fixture.agent.Publish();
  REQUIRE(fixture.Pull().ok());
  fixture.agent.Publish();
  fixture.agent.Publish();
  const bool last = GENERATE(true, false);
  fixture.agent.twist = [last](v1::PullPlan& plan) {
    if (last) plan.set_target_digest(std::string(16, 'x'));
    plan.mutable_steps(last ? 1 : 0)->set_target_digest(std::string(16, 'x'));
  };
  CHECK(fixture.Pull().status().code() == ErrorCode::kCorrupt);
  fixture.Check(2);
  CHECK(fixture.pair->previous().held.version == 1);
  fixture.agent.twist = [](v1::PullPlan&) {};
  REQUIRE(fixture.Pull().ok());
  fixture.Check(4);
  fixture.Stop();
}

TEST_CASE("A full pull that the trainer overtakes ends at one version, whatever versions its blocks are of") {
  SessionFixture fixture;
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
  SessionFixture fixture;
  fixture.options.follow = false;
  fixture.agent.lanes().version_of = [](BlockIndex block) { return block % 3 == 0 ? Version{7} : Version{1}; };
  fixture.agent.catch_up_target = [] { return Version{5}; };
  fixture.Start();
  REQUIRE(fixture.Pull().ok());
  fixture.Check(5);
  fixture.Stop();
}

TEST_CASE("Stopping ends a stalled pull at once") {
  SessionFixture fixture;
  fixture.agent.lanes().fault_of = [](int) { return pull::Fault::kStall; };
  fixture.Start();
  fixture.WaitFor([&] { return fixture.Describe().state() == v1::SESSION_STATE_PULLING; });
  const auto begin = std::chrono::steady_clock::now();
  fixture.Stop();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));  // a lane's silence takes 30 s
}

TEST_CASE("Without an agent a session waits, and a pull says what is wrong") {
  SessionFixture fixture;
  fixture.origin.agent = net::HostPort{"127.0.0.1", 1};
  fixture.Start();
  const auto record = fixture.Pull();
  CHECK_THAT(record, FailsWith(ErrorCode::kUnavailable, "127.0.0.1:1"));
  CHECK(fixture.Describe().last_error().find("127.0.0.1:1") != std::string::npos);
  fixture.Stop();
}

}  // namespace lockstep::session

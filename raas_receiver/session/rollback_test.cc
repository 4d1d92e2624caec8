// Rollbacks: what a session does that is asked for another version than it has, or is about to have.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "common/base/status_testing.h"
#include "raas_receiver/session/session_fixture.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kAtOnce{20};  // a lane's silence takes 30 s, as a call does that is not answered

// At version `version`, the other replica at the one before.
void FollowTo(SessionFixture& fixture, Version version) {
  fixture.Start();
  fixture.WaitHeld(1);
  while (fixture.pair->current().held.version < version) {
    fixture.agent.Publish();
    fixture.WaitHeld(fixture.pair->current().held.version + 1);
  }
}

// A pull of the next version has begun, and gets no bytes until this ends.
class StalledPull {
 public:
  explicit StalledPull(SessionFixture& fixture) : fixture_(fixture) {
    fixture.agent.lanes().fault_of = [](int) { return pull::Fault::kStall; };
    fixture.agent.Publish();
    fixture.WaitFor([&] { return fixture.Describe().state() == v1::SESSION_STATE_PULLING; });
  }
  ~StalledPull() {
    fixture_.agent.lanes().fault_of = [](int) { return pull::Fault::kNone; };
  }

 private:
  SessionFixture& fixture_;
};

void CheckStays(SessionFixture& fixture, Version version) {
  std::this_thread::sleep_for(milliseconds(100));
  CHECK(fixture.Describe().held().version() == version);
  fixture.Check(version);
}

void Restart(SessionFixture& fixture) {
  fixture.Stop();
  fixture.Start();
}

}  // namespace

TEST_CASE("After a rollback the session holds until a pull, which needs no bytes when the version is still there") {
  SessionFixture fixture;
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

TEST_CASE("A rollback ends the pull that runs, and has the version that was the one before when it came") {
  SessionFixture fixture;
  fixture.origin.streaming = false;
  FollowTo(fixture, 2);
  const auto begun = std::chrono::steady_clock::now();
  {
    const StalledPull pull(fixture);
    auto pulled = std::async(std::launch::async, [&] { return fixture.Pull(); });
    const auto back = fixture.Rollback();
    REQUIRE(back.ok());
    CHECK(back->held().version() == 1);
    CHECK(back->previous().version() == 2);
    CHECK(back->last_error().empty());
    CHECK(std::chrono::steady_clock::now() - begun < kAtOnce);
    if (pulled.wait_for(milliseconds(200)) == std::future_status::timeout) REQUIRE(fixture.Rollback(1).ok());
    CHECK_THAT(pulled.get(), FailsWith(ErrorCode::kCancelled, "rollback"));
  }
  CheckStays(fixture, 1);
  Restart(fixture);
  CheckStays(fixture, 1);
  CHECK(fixture.Describe().state() == v1::SESSION_STATE_HELD);
  REQUIRE(fixture.Pull().ok());
  fixture.WaitHeld(3);
  fixture.Stop();
}

TEST_CASE("A rollback does not wait for an agent that answers no call") {
  SessionFixture fixture;
  fixture.origin.streaming = false;
  FollowTo(fixture, 2);
  std::promise<void> answer;
  const std::shared_future<void> answered = answer.get_future();
  std::promise<void> asked;
  fixture.agent.twist = [&, once = true](v1::PullPlan&) mutable {
    if (std::exchange(once, false)) asked.set_value();
    answered.wait();
  };
  fixture.agent.Publish();
  asked.get_future().wait();
  const auto begun = std::chrono::steady_clock::now();
  CHECK(fixture.Rollback().ok());
  CHECK(std::chrono::steady_clock::now() - begun < kAtOnce);
  answer.set_value();
  CheckStays(fixture, 1);
  fixture.Stop();
}

TEST_CASE("A rollback does not wait for a layout that is asked for ahead of its version") {
  SessionFixture fixture;
  FollowTo(fixture, 2);
  std::promise<void> answer;
  const std::shared_future<void> answered = answer.get_future();
  std::promise<void> asked;
  fixture.agent.twist_layout = [&, once = true](v1::Layout&) mutable {
    if (std::exchange(once, false)) asked.set_value();
    answered.wait();
  };
  fixture.agent.twist_event = [&](v1::VersionEvent& event) {  // what is held, and the layout of what will come
    *event.mutable_newest() = origin::ToProto(fixture.replicas.model.held(2));
    event.set_manifest_digest(ToBytes(fixture.replicas.model.manifest(2).digest));
    event.set_layout_digest(std::string(16, 'x'));
  };
  fixture.agent.Publish();
  asked.get_future().wait();
  const auto begun = std::chrono::steady_clock::now();
  CHECK(fixture.Rollback().ok());
  CHECK(std::chrono::steady_clock::now() - begun < kAtOnce);
  answer.set_value();
  CheckStays(fixture, 1);
  fixture.Stop();
}

TEST_CASE("A rollback finds its version until the state of that is removed; then it is refused, and ends no sync") {
  const std::string at = GENERATE("withdrawn", "state removed");
  SessionFixture fixture;
  fixture.origin.streaming = false;
  std::future<Status> back;
  std::atomic<bool> asked = false;
  fixture.replicas.options.at_edge = [&](std::string_view edge) {
    if (edge != at || fixture.pair == nullptr || fixture.pair->current().held.version != 2 || asked) return;
    back = std::async(std::launch::async, [&] { return fixture.Rollback().status(); });
    (void)back.wait_for(std::chrono::seconds(2));
    asked = true;
  };
  FollowTo(fixture, 2);
  fixture.agent.Publish();
  fixture.WaitFor([&] { return asked.load(); });
  if (at == "withdrawn") {
    CHECK(back.get().ok());
    CheckStays(fixture, 1);
  } else {
    CHECK_THAT(back.get(), FailsWith(ErrorCode::kState, "nothing to roll back to"));
    CHECK(fixture.agent.pulls_opened == 3);
    fixture.WaitHeld(3);
  }
  fixture.Stop();
}

TEST_CASE("A version that a rollback skips does not come back, across a restart, and a newer one does") {
  SessionFixture fixture;
  FollowTo(fixture, 2);
  const auto back = fixture.Rollback(0, 2);
  REQUIRE(back.ok());
  CHECK(back->held().version() == 1);
  CHECK(back->skipped_version() == 2);
  CheckStays(fixture, 1);
  CHECK(fixture.Describe().state() == v1::SESSION_STATE_WAITING);
  CHECK(fixture.session->Ready());
  Restart(fixture);
  CheckStays(fixture, 1);
  CHECK(fixture.Describe().skipped_version() == 2);
  SECTION("when it is published") {
    fixture.agent.Publish();
    fixture.WaitHeld(3);
  }
  SECTION("and it does when a pull asks for it") {
    REQUIRE(fixture.Pull().ok());
    fixture.WaitHeld(2);
  }
  CHECK(fixture.Describe().skipped_version() == 0);
  fixture.Stop();
}

TEST_CASE("A version that is skipped while it is pulled is not made current, whatever the agent's plan says") {
  SessionFixture fixture;
  fixture.origin.streaming = false;
  FollowTo(fixture, 2);
  {
    const StalledPull pull(fixture);
    const auto stays = fixture.Rollback(0, 3);
    REQUIRE(stays.ok());
    CHECK(stays->held().version() == 2);
  }
  CheckStays(fixture, 2);
  fixture.agent.twist = [&](v1::PullPlan& plan) {  // as if the next had not been there yet
    plan.mutable_target()->set_version(3);
    plan.set_target_digest(ToBytes(fixture.replicas.model.manifest(3).digest));
    plan.mutable_steps()->DeleteSubrange(1, plan.steps_size() - 1);
    plan.set_mode(v1::PULL_MODE_DELTA);
  };
  fixture.agent.Publish();
  fixture.WaitFor([&] { return fixture.Describe().last_error().find("version 3 is skipped") != std::string::npos; });
  CheckStays(fixture, 2);
  fixture.agent.twist = [](v1::PullPlan&) {};
  fixture.WaitHeld(4);
  fixture.Stop();
}

TEST_CASE("A rollback to the version that is held keeps it") {
  SessionFixture fixture;
  FollowTo(fixture, 2);
  REQUIRE(fixture.Rollback(2).ok());
  fixture.agent.Publish();
  CheckStays(fixture, 2);
  CHECK(fixture.Describe().state() == v1::SESSION_STATE_HELD);
  REQUIRE(fixture.Rollback(1).ok());
  REQUIRE(fixture.Rollback(2).ok());  // forward again
  CheckStays(fixture, 2);
  REQUIRE(fixture.Rollback(0, 3).ok());  // instead: follows
  CHECK(fixture.Describe().state() == v1::SESSION_STATE_WAITING);
  CheckStays(fixture, 2);
  fixture.agent.Publish();
  fixture.WaitHeld(4);
  fixture.Stop();
}

TEST_CASE("A rollback to what is not there is refused, and ends no pull") {
  SessionFixture fixture;
  fixture.origin.streaming = false;
  FollowTo(fixture, 2);
  const StalledPull pull(fixture);
  CHECK_THAT(fixture.Rollback(1, 2), FailsWith(ErrorCode::kUsage, "not both"));
  CHECK_THAT(fixture.Rollback(7), FailsWith(ErrorCode::kState, "no whole version 7"));
  CHECK_THAT(fixture.Rollback(0, 1), FailsWith(ErrorCode::kState, "version 1 is neither held, which is 2, nor"));
  CHECK_THAT(fixture.Rollback(0, 4), FailsWith(ErrorCode::kState, "version 4 is neither held"));
  CHECK(fixture.Describe().state() == v1::SESSION_STATE_PULLING);
  fixture.Stop();
}

}  // namespace lockstep::session

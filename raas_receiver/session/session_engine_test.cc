#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <latch>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/file.h"
#include "raas_receiver/engine/ranks/ranks_fixture.h"
#include "raas_receiver/session/session_fixture.h"

namespace lockstep::session {
namespace {

using std::chrono::milliseconds;

// A hook that says what it was told, waits until it may go on, and fails if its version is not whole then.
struct SlowHook {
  explicit SlowHook(SessionFixture& fixture) : fixture(fixture), calls(fixture.replicas.root.File("calls")) {
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

  SessionFixture& fixture;
  const std::string calls;
};

}  // namespace

TEST_CASE("A failing hook leaves the version held but not served, is tried again, and is notified of the next one") {
  SessionFixture fixture;
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

TEST_CASE("An engine that is late with a version is named, and not ready, until it serves it") {
  SessionFixture fixture;
  SlowHook hook(fixture);
  fixture.entry.late_after = milliseconds(50);
  fixture.Start();
  hook.WaitForCall(1);
  fixture.WaitFor([&] { return !fixture.Describe().last_error().empty(); });
  CHECK_THAT(fixture.Describe().last_error(), Catch::Matches("engine hook: version 1 is not served after [0-9]+ s"));
  CHECK_FALSE(fixture.session->Ready());
  hook.Release(1);
  fixture.WaitFor([&] { return fixture.session->Ready(); });
  CHECK(fixture.Describe().last_error().empty());
  fixture.Stop();
}

TEST_CASE("An engine that hangs holds up others once, until it is late, and then catches up with the newest version") {
  SessionFixture fixture;
  SlowHook hook(fixture);
  fixture.entry.late_after = milliseconds(200);
  const std::string told = fixture.replicas.root.File("told");
  fixture.others.push_back(
      {{.name = "quick"},
       *engine::NewEngineDriver({.kind = "hook", .command = "echo $LOCKSTEP_VERSION >> " + told, .attempts = 1})});
  fixture.Start();
  hook.WaitForCall(1);
  const auto wait_told = [&](Version version) {
    fixture.WaitFor([&] {
      const auto said = os::ReadFile(told);
      return said.ok() && said->ends_with(Cat("\n", version, "\n"));
    });
  };
  for (Version version = 2; version <= 5; ++version) {
    fixture.agent.Publish();
    wait_told(version);
  }
  CHECK(fixture.Describe().served_version() == 0);  // by the one that is the furthest behind
  CHECK_FALSE(fixture.session->Ready());
  CHECK_THAT(fixture.Describe().engines(0).last_error(),
             Catch::Contains("was not served within 0.2 s (--engine-late-after), and a newer version waited"));
  for (Version version = 1; version <= 5; ++version) hook.Release(version);
  fixture.WaitFor([&] { return fixture.Describe().served_version() == 5; });
  fixture.WaitFor([&] { return fixture.session->Ready(); });
  CHECK(fixture.Describe().last_error().empty());
  fixture.Stop();
}

TEST_CASE("Each engine's version is remembered by its name") {
  SessionFixture fixture;
  const std::string told = fixture.replicas.root.File("told");
  const auto table = [&](const std::string& command) {
    fixture.engine = {.kind = "hook", .command = "echo first >> " + told, .attempts = 1};
    fixture.others.push_back(
        {{.name = "second"}, *engine::NewEngineDriver({.kind = "hook", .command = command, .attempts = 1})});
    fixture.Start();
  };
  table("false");
  fixture.WaitHeld(1);
  fixture.WaitFor([&] { return fixture.Describe().engine_failures() > 0; });
  CHECK(*os::ReadFile(told) == "first\n");
  fixture.Stop();
  table("echo second >> " + told);
  fixture.WaitFor([&] { return fixture.Describe().served_version() == 1; });
  CHECK(*os::ReadFile(told) == "first\nsecond\n");
  fixture.Stop();
}

TEST_CASE("A receiver that comes back without having notified its engine does so then") {
  SessionFixture fixture;
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
  SessionFixture fixture;
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

TEST_CASE("A pull is answered with what the hook of its version said, however long that took") {
  SessionFixture fixture;
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

TEST_CASE("A rollback that is refused leaves a pull waiting for its hook") {
  SessionFixture fixture;
  fixture.options.follow = false;
  SlowHook hook(fixture);
  fixture.Start();
  auto answer = std::async(std::launch::async, [&] { return fixture.Pull(); });
  hook.WaitForCall(1);
  CHECK_THAT(fixture.Rollback(), FailsWith(ErrorCode::kState, "nothing to roll back to"));
  REQUIRE(os::WriteFileAtomic(hook.File("1"), "another").ok());
  const auto record = answer.get();
  REQUIRE(record.ok());
  CHECK_FALSE(record->engine_error().empty());
}

TEST_CASE("While a hook runs the next version is committed, and the one that it loads stays whole") {
  SessionFixture fixture;
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
    hook.WaitForCall(3);  // 2 is skipped
    CHECK(fixture.Describe().served_version() == 1);
    hook.Release(3);
    fixture.WaitHeld(3);
    CHECK(fixture.Describe().served_version() == 3);
    fixture.WaitFor([&] { return fixture.Describe().last_error().empty(); });
  }
  SECTION("and a rollback returns to it, for a pull to go on") {
    auto back = std::async(std::launch::async, [&] { return fixture.Rollback(); });
    fixture.WaitFor([&] { return fixture.pair->current().held.version == 1; });  // before its hook ends 3 is not pulled
    hook.Release(1);
    CHECK(back.get().ok());
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

TEST_CASE("A rollback does not wait for a hook that hangs, be it late or not: that is killed") {
  SessionFixture fixture;
  SlowHook hook(fixture);
  const bool late = GENERATE(false, true);
  if (late) fixture.entry.late_after = std::chrono::seconds(2);
  fixture.Start();
  hook.Release(1);
  fixture.WaitHeld(1);
  fixture.WaitFor([&] { return fixture.Describe().served_version() == 1; });
  fixture.agent.Publish();
  hook.WaitForCall(2);  // and it never ends
  fixture.WaitFor([&] { return !late || !fixture.Describe().last_error().empty(); });
  const auto back = fixture.Rollback();
  REQUIRE(back.ok());
  CHECK(back->held().version() == 1);
  CHECK(back->served_version() == 1);
  CHECK(back->engine_failures() == 0);
  fixture.Stop();
}

TEST_CASE("A full pull while a hook runs is answered by the hook that is run for its bytes") {
  SessionFixture fixture;
  const auto file = [&](const std::string& name) { return fixture.replicas.root.File(name); };
  fixture.engine = {.kind = "hook",
                    .command =
                        "touch begun-$(basename $LOCKSTEP_PATH); while ! test -e end-$(basename $LOCKSTEP_PATH); "
                        "do sleep 0.01; done",
                    .attempts = 1};
  fixture.engine.command = Cat("cd ", fixture.replicas.root.path(), "; ", fixture.engine.command);
  const auto name = [&] { return std::filesystem::path(fixture.pair->current().path).filename().string(); };
  const auto wait_begun = [&] { fixture.WaitFor([&] { return os::ReadFile(file("begun-" + name())).ok(); }); };
  fixture.Start();
  fixture.WaitFor([&] { return fixture.pair->current().held.version == 1; });
  const std::string first = name();
  wait_begun();
  auto answer = std::async(std::launch::async, [&] { return fixture.Pull(true); });
  fixture.WaitFor([&] { return name() != first; });
  fixture.WaitFor([&] { return fixture.Describe().syncs() == 2; });
  REQUIRE(os::WriteFileAtomic(file("end-" + first), "").ok());
  wait_begun();
  CHECK(answer.wait_for(milliseconds(200)) == std::future_status::timeout);
  REQUIRE(os::WriteFileAtomic(file("end-" + name()), "").ok());
  const auto record = answer.get();
  REQUIRE(record.ok());
  CHECK(record->engine_error().empty());
  fixture.Stop();
}

TEST_CASE("A full pull while a hook runs leaves the directory that it loads") {
  SessionFixture fixture;
  SlowHook hook(fixture);
  fixture.Start();
  hook.WaitForCall(1);
  const std::string loaded = fixture.pair->current().path;
  auto answer = std::async(std::launch::async, [&] { return fixture.Pull(true); });
  fixture.WaitFor([&] { return fixture.pair->current().path != loaded; });
  CHECK(replica::ReplicaFixture::FileBytes(loaded + "/model.safetensors") ==
        replica::ReplicaFixture::Image(fixture.replicas.model, 1));
  hook.Release(1);
  const auto record = answer.get();
  REQUIRE(record.ok());
  CHECK(record->mode() == "full");
  fixture.WaitHeld(1);
  CHECK(fixture.Describe().served_version() == 1);
  fixture.Stop();
}

TEST_CASE("A verify says which engines were not compared, and why") {
  SessionFixture fixture;
  fixture.entry.in_place = true;
  fixture.others.push_back(
      {{.name = "refuses"}, *engine::NewEngineDriver({.kind = "hook", .command = "false", .attempts = 1})});
  fixture.others.push_back(
      {{.name = "loads"}, *engine::NewEngineDriver({.kind = "hook", .command = "true", .attempts = 1})});
  fixture.Start();
  fixture.WaitHeld(1);
  fixture.WaitFor([&] { return !fixture.Describe().engines(1).last_error().empty(); });
  v1::VerifyResult result;
  fixture.session->engines().DescribeUncompared(result);
  REQUIRE(result.not_compared_size() == 2);
  CHECK(result.not_compared(0) == "default: no rank of it is attached");
  CHECK_THAT(result.not_compared(1), Catch::Contains("refuses: it is not known to serve a version; aborted: "));
  CHECK(result.not_comparing() == 1);
  fixture.Stop();
}

TEST_CASE("Ranks that are stopped hold no thread of the pool that the syncs of all sessions share") {
  SessionFixture fixture;
  fixture.entry.in_place = true;
  fixture.entry.ranks.pause_timeout = std::chrono::minutes(10);
  fixture.Start();
  os::TempDir sockets;
  auto server =
      engine::StartRankServer(sockets.File("engine.sock"),
                              {{"actor",
                                {.find_ranks = [&](const auto& rank) { return fixture.session->engines().Find(rank); },
                                 .layout = [&] { return fixture.session->layout(); }}}});
  REQUIRE(server.ok());
  std::vector<std::unique_ptr<engine::RankHandle>> ranks;
  for (const uint32_t number : {0, 1}) {
    const engine::TestRankOptions options{.socket = sockets.File("engine.sock"),
                                          .engine = "default",
                                          .rank = number,
                                          .at_stage = engine::RankFault::kSilent};
    ranks.push_back(std::make_unique<engine::RankHandle>(fixture.replicas.model, options));
    ranks.back()->StartThread();
  }
  for (auto& rank : ranks) fixture.WaitFor([&] { return rank->status().batches > 0; });
  WorkerPool& pool = fixture.replicas.pool;
  std::latch together(static_cast<ptrdiff_t>(pool.size() + 1));
  std::atomic<size_t> met = 0;
  pool.ParallelFor(pool.size() + 1, [&](size_t) {
    together.count_down();
    if (Eventually([&] { return together.try_wait(); })) ++met;
  });
  CHECK(met == pool.size() + 1);
  for (auto& rank : ranks) rank->End();
  server->reset();
  fixture.Stop();
}

}  // namespace lockstep::session

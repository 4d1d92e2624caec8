// Receivers and ranks as real processes, killed at every step of a commit and at any moment: no rank ever reads a mix,
// no two ranks of an engine read different versions, and all come out at one.

#include <sys/stat.h>

#include <random>

#include "common/base/status_testing.h"
#include "raas_receiver/targets/targets_fixture.h"

namespace lockstep::targets {
namespace {

constexpr int kDied = 3;
constexpr int kFinished = 4;
constexpr int kFailed = 5;

void Reattaches(TestRankOptions& options) {
  options.reattach = true;
}

// A receiver in a process that serves version 1 and dies at `step` of the commit of version 2. Its exit status.
pid_t ForkReceiver(TargetsFixture& fixture, const std::string& step) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  bool armed = false;
  int served = 0;
  fixture.options.at_step = [&](std::string_view at) {
    if (armed && (at == step || (at == "serve" && step == "one of two served" && ++served == 2))) ::_exit(kDied);
  };
  if (!fixture.Start().ok() || !fixture.Changed(2) || !fixture.Bring(1).ok()) ::_exit(kFailed);
  armed = true;
  ::_exit(fixture.Bring(2, 1).ok() ? kFinished : kFailed);
}

int ExitOf(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("When a receiver dies, ranks that were not written resume, and others wait for the next") {
  const std::string step = GENERATE("prepared", "held", "written", "one of two served", "serving");
  INFO("killed at " << step);
  TargetsFixture fixture;
  fixture.AddRank(0, Reattaches);
  fixture.AddRank(1, Reattaches);
  const pid_t receiver = ForkReceiver(fixture, step);
  for (auto& rank : fixture.ranks) rank->StartThread();
  REQUIRE(ExitOf(receiver) == kDied);

  const bool before_writing = step == "prepared" || step == "held";
  for (auto& rank : fixture.ranks) {
    REQUIRE(Eventually([&] { return !rank->status().following; }));
    const bool serves_new = step == "serving" || (step == "one of two served" && rank == fixture.ranks[0]);
    if (before_writing) CHECK(rank->Serves(1));
    if (serves_new) CHECK(rank->Serves(2));
    if (!before_writing && !serves_new) CHECK((rank->status().held && rank->status().holding == 2));
    CHECK(rank->status().wrong_reads == 0);
  }

  REQUIRE(fixture.Start().ok());
  REQUIRE(fixture.Changed(2));
  REQUIRE(fixture.Prepare(2, 1).ok());
  CHECK(fixture.targets->prepared() == (step != "serving"));
  if (fixture.targets->prepared()) REQUIRE(fixture.targets->Commit().ok());
  for (auto& rank : fixture.ranks) CHECK(Eventually([&] { return rank->Serves(2); }));
  CHECK(fixture.targets->Verify(fixture.Target(2)).ok());
}

TEST_CASE("When a rank is killed, the others resume if they were not written, and its successor joins them") {
  const std::string step = GENERATE("prepared", "held", "written", "serve");
  INFO("killed at " << step);
  TargetsFixture fixture;
  RankHandle& stays = fixture.AddRank(0);
  RankHandle& dies = fixture.AddRank(1);
  stays.StartProcess();
  dies.StartProcess();
  bool armed = false;
  fixture.options.at_step = [&](std::string_view at) {
    if (armed && at == step) dies.Kill();
  };
  REQUIRE(fixture.Start().ok());
  REQUIRE(fixture.Changed(2));
  REQUIRE(fixture.Bring(1).ok());
  armed = true;
  const Status status = fixture.Bring(2, 1);
  armed = false;

  const bool committed = step == "serve";
  const bool waits = step == "written";
  const Version expected = committed ? 2 : 1;
  CHECK(status.ok() == committed);
  CHECK(fixture.report().attached == 1);
  CHECK(fixture.report().waiting() == (waits ? 1 : 0));
  CHECK(fixture.report().serving() == (waits ? Held() : fixture.model.held(expected)));
  CHECK(stays.status().wrong_reads == 0);
  if (waits) CHECK((stays.status().held && stays.status().holding == 2));
  if (!waits) CHECK(Eventually([&] { return stays.Serves(expected); }));

  RankHandle& successor = fixture.RunRank(1);
  REQUIRE(fixture.Changed(1));
  const auto [version, before] = GENERATE(table<Version, Version>({{2, 1}, {3, 2}}));
  REQUIRE(fixture.Bring(version, before).ok());
  CHECK(Eventually([&] { return stays.Serves(version) && successor.Serves(version); }));
}

TEST_CASE("A first commit that fails serves nothing, and the next one everything") {
  TargetsFixture fixture;
  RankHandle& stays = fixture.AddRank(0);
  RankHandle& dies = fixture.AddRank(1);
  stays.StartProcess();
  dies.StartProcess();
  fixture.options.at_step = [&](std::string_view at) {
    if (at == "written") dies.Kill();
  };
  REQUIRE(fixture.Start().ok());
  REQUIRE(fixture.Changed(2));
  CHECK(fixture.Bring(1).code() == ErrorCode::kAborted);
  CHECK(stays.status().held);
  CHECK(fixture.report().serving().nothing());
  CHECK(fixture.report().waiting() == 1);
  RankHandle& successor = fixture.RunRank(1);
  REQUIRE(fixture.Changed(1));
  REQUIRE(fixture.Bring(1).ok());
  CHECK(Eventually([&] { return stays.Serves(1) && successor.Serves(1); }));
}

TEST_CASE("Receivers killed at any moment never leave two ranks with different versions, or one with a mix") {
  std::mt19937 random(1);
  TargetsFixture fixture(6);
  for (uint32_t rank : {0, 1}) fixture.RunRank(rank, Reattaches);
  size_t served = 0;
  for (int life = 1; life <= 15 || (served == 0 && life <= 100); ++life) {
    const pid_t receiver = ::fork();
    if (receiver == 0) {
      if (!fixture.Start().ok() || !fixture.Changed(2)) ::_exit(kFailed);
      for (Version version = 1;; version = version % 6 + 1) {
        if (!fixture.Bring(version, version == 1 ? 6 : version - 1).ok()) ::_exit(kFailed);
      }
    }
    for (auto& rank : fixture.ranks) {
      REQUIRE(Eventually([&] { return rank->status().attached == static_cast<uint32_t>(life); }));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
    ::kill(receiver, SIGKILL);
    REQUIRE(ExitOf(receiver) == -1);
    for (auto& rank : fixture.ranks) {
      REQUIRE(Eventually([&] { return !rank->status().following; }));
      CHECK(rank->status().wrong_reads == 0);
    }
    RankStatus& first = fixture.ranks[0]->status();
    RankStatus& second = fixture.ranks[1]->status();
    INFO("life " << life << ": " << first.serving << (first.held ? " held, " : ", ") << second.serving
                 << (second.held ? " held" : ""));
    if (first.held || second.held) continue;
    CHECK(first.serving == second.serving);
    ++served;
  }
  CHECK(served > 0);
}

// Needs root: nobody else can become another user, not even in a user namespace of its own, where the receiver would
// see its own user all the same.
TEST_CASE("A peer of another user is refused, even where it can reach the socket") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can become another user");
    return;
  }
  TargetsFixture fixture;
  REQUIRE(fixture.Start().ok());
  REQUIRE(::chmod(fixture.directory.path().c_str(), 0755) == 0);
  REQUIRE(::chmod(fixture.socket().c_str(), 0666) == 0);
  const pid_t other = ::fork();
  if (other == 0) {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(2);
    auto connection = os::UnixConnect(fixture.socket(), kPatience);
    if (!connection.ok()) ::_exit(3);
    const auto answer = ReceiveEngineMessage(*connection, kPatience);
    const bool refused = answer.ok() && answer->type == EngineMessageType::kRefused &&
                         AsText(answer->body).find("run both as one user") != std::string_view::npos;
    ::_exit(refused ? 0 : 4);
  }
  int status = 0;
  REQUIRE(::waitpid(other, &status, 0) == other);
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace lockstep::targets

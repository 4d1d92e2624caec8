// Receivers and ranks as real processes, killed at every step of a commit and at any moment: no rank ever reads a mix,
// no two ranks of an engine read different versions, and all come out at one.

#include <sys/stat.h>

#include <algorithm>
#include <random>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "raas_receiver/engine/ranks/ranks_fixture.h"

namespace lockstep::engine {
namespace {

constexpr int kDied = 3;
constexpr int kFinished = 4;
constexpr int kFailed = 5;

void Reattaches(TestRankOptions& options) {
  options.reattach = true;
}

// A receiver in a process that serves version 1 and dies at `step` of the commit of version 2. Its exit status.
pid_t ForkReceiver(RanksFixture& fixture, const std::string& step) {
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
  const std::string step = GENERATE("prepared", "paused", "written", "one of two served", "serving");
  INFO("killed at " << step);
  RanksFixture fixture;
  fixture.AddRank(0, Reattaches);
  fixture.AddRank(1, Reattaches);
  const pid_t receiver = ForkReceiver(fixture, step);
  for (auto& rank : fixture.ranks) rank->StartThread();
  REQUIRE(ExitOf(receiver) == kDied);

  const bool before_writing = step == "prepared" || step == "paused";
  for (auto& rank : fixture.ranks) {
    REQUIRE(Eventually([&] { return !rank->status().following; }));
    const bool serves_new = step == "serving" || (step == "one of two served" && rank == fixture.ranks[0]);
    if (before_writing) CHECK(rank->Serves(1));
    if (serves_new) CHECK(rank->Serves(2));
    if (!before_writing && !serves_new) CHECK((rank->status().paused && rank->status().holding == 2));
    CHECK(rank->status().wrong_reads == 0);
  }

  REQUIRE(fixture.Start().ok());
  REQUIRE(fixture.Changed(2));
  REQUIRE(fixture.Prepare(2, 1).ok());
  CHECK(fixture.engine_ranks->prepared() == (step != "serving"));
  if (fixture.engine_ranks->prepared()) REQUIRE(fixture.engine_ranks->Commit().ok());
  for (auto& rank : fixture.ranks) CHECK(Eventually([&] { return rank->Serves(2); }));
  CHECK(fixture.engine_ranks->Verify(fixture.Target(2)).ok());
}

TEST_CASE("When a rank is killed, the others resume if they were not written, and its successor joins them") {
  const std::string step = GENERATE("prepared", "paused", "written", "serve");
  INFO("killed at " << step);
  RanksFixture fixture;
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
  CHECK(fixture.report().waiting == (waits ? 1 : 0));
  CHECK(fixture.report().serving() == (waits ? VersionRef() : fixture.model.held(expected)));
  CHECK(stays.status().wrong_reads == 0);
  if (waits) CHECK((stays.status().paused && stays.status().holding == 2));
  if (!waits) CHECK(Eventually([&] { return stays.Serves(expected); }));

  RankHandle& successor = fixture.RunRank(1);
  REQUIRE(fixture.Changed(1));
  const auto [version, before] = GENERATE(table<Version, Version>({{2, 1}, {3, 2}}));
  REQUIRE(fixture.Bring(version, before).ok());
  CHECK(Eventually([&, version = version] { return stays.Serves(version) && successor.Serves(version); }));
}

TEST_CASE("A first commit that fails serves nothing, and the next one everything") {
  RanksFixture fixture;
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
  CHECK(stays.status().paused);
  CHECK(fixture.report().serving().nothing());
  CHECK(fixture.report().waiting == 1);
  RankHandle& successor = fixture.RunRank(1);
  REQUIRE(fixture.Changed(1));
  REQUIRE(fixture.Bring(1).ok());
  CHECK(Eventually([&] { return stays.Serves(1) && successor.Serves(1); }));
}

// A receiver that brings an engine of two ranks to one version after the other, and forgets nothing when it dies; a
// trainer's versions come as fast as it takes them. The ranks answer together. The receiver or a rank dies, or hangs
// up, at an edge of the protocol that was drawn, and all go on.
class Deaths {
 public:
  enum Who : uint32_t { kReceiver, kFirst, kSecond };
  struct Plan {  // shared
    std::atomic<bool> armed{false};
    std::atomic<bool> done{false};
    std::atomic<uint32_t> who{0};
    std::atomic<uint32_t> edge{0};
    std::atomic<uint32_t> times{0};  // that the edge is passed before
    std::atomic<bool> dies{false};   // a rank: it hangs up otherwise
    std::atomic<Version> current{1};
    std::atomic<Version> before{0};
  };
  // Of both; the receiver passes the first five, ranks all but the first.
  static constexpr std::string_view kEdges[] = {
      "prepared", "paused", "written", "serve", "serving", "pause", "paused and said so", "stage", "half written"};
  static constexpr uint32_t kOfReceiver = 5;

  explicit Deaths(uint32_t seed) : random_(seed) {
    // For an answer, and for a pause that came between the two of an answer.
    fixture_.options.pause_timeout = fixture_.options.serve_timeout = kSilence;
    fixture_.options.comes_back = std::chrono::milliseconds(50);
    StartEngine();
    StartReceiver();
  }
  ~Deaths() {
    Kill(receiver_);
    EndEngine();
  }

  // One death. The seconds from it until both ranks serve the newest version; nothing: the edge was not reached.
  std::optional<double> One() {
    Draw();
    const auto armed = Clock::now();
    while (!plan_->done && Clock::now() - armed < std::chrono::milliseconds(500)) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    plan_->armed = false;
    INFO(drawn_ << (plan_->done ? "" : ", which was not reached"));
    const auto died = Clock::now();
    if (plan_->done && plan_->who == kReceiver) {
      ::waitpid(receiver_, nullptr, 0);
      StartReceiver();
    }
    if (plan_->done && plan_->who != kReceiver && plan_->dies) {  // an engine does not outlive a rank
      EndEngine();
      StartEngine();
    }
    const Version then = plan_->current;
    const uint32_t answers = fixture_.ranks[0]->status().answers;
    REQUIRE(Eventually([&] { return plan_->current != then && fixture_.ranks[0]->status().answers > answers; }));
    for (auto& rank : fixture_.ranks) REQUIRE(rank->status().wrong_reads == 0);
    if (!plan_->done) return std::nullopt;
    return std::chrono::duration<double>(Clock::now() - died).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kSilence{2};

  std::string Drawn() const {
    const char* const who[] = {"the receiver", "rank 0", "rank 1"};
    return Cat(who[plan_->who], plan_->dies || plan_->who == kReceiver ? " dies" : " hangs up", " at '",
               kEdges[plan_->edge], "' after ", plan_->times.load());
  }

  void Draw() {
    plan_->done = false;
    plan_->who = random_() % 3;
    plan_->edge = plan_->who == kReceiver ? random_() % kOfReceiver : 1 + random_() % (std::size(kEdges) - 1);
    plan_->times = random_() % 3;
    plan_->dies = random_() % 3 == 0;
    drawn_ = Drawn();
    plan_->armed = true;
  }

  // Whether it is here that a process dies.
  bool Here(Who who, std::string_view edge) {
    if (!plan_->armed || plan_->who != who || edge != kEdges[plan_->edge] || plan_->times-- != 0) return false;
    plan_->armed = false;
    plan_->done = true;
    return true;
  }

  void StartReceiver() {
    receiver_ = ::fork();
    if (receiver_ != 0) return;
    fixture_.options.at_step = [&](std::string_view step) {
      if (Here(kReceiver, step)) ::_exit(kDied);
    };
    if (!fixture_.Start().ok()) ::_exit(kFailed);
    while (true) {  // as a session does
      if (fixture_.engine_ranks->Behind(fixture_.model.held(plan_->current))) {
        (void)fixture_.Bring(plan_->current, plan_->before);
      } else if (CanGoOn()) {
        plan_->before = plan_->current.load();
        plan_->current = plan_->current % kVersions + 1;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  bool CanGoOn() {
    const bool before_is_read = plan_->before != 0 && fixture_.engine_ranks->Reads(fixture_.model.held(plan_->before));
    return !before_is_read && fixture_.report().attached == 2;
  }

  void StartEngine() {
    ++incarnation_;
    collective_.emplace();
    for (const uint32_t rank : {0, 1}) {
      fixture_.AddRank(rank, [&](TestRankOptions& options) {
        options.reattach = true;
        options.incarnation = std::to_string(incarnation_);
        options.collective = &**collective_;
        options.at_edge = [this, who = rank == 0 ? kFirst : kSecond](std::string_view edge) {
          if (!Here(who, edge)) return true;
          if (plan_->dies) ::_exit(kDied);
          return false;
        };
      });
      fixture_.ranks.back()->StartProcess();
    }
  }

  void EndEngine() {
    for (auto& rank : fixture_.ranks) rank->Kill();
    fixture_.ranks.clear();
  }

  static void Kill(pid_t process) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }

  static constexpr Version kVersions = 6;
  RanksFixture fixture_{kVersions};
  SharedObject<Plan> plan_;
  std::optional<SharedObject<Collective>> collective_;
  std::mt19937 random_;
  std::string drawn_;
  int incarnation_ = 0;
  pid_t receiver_ = -1;
};

TEST_CASE("Killed or cut off at any edge, by either end, ranks never answer with two versions, and all go on") {
  Deaths deaths(20261124);
  std::vector<double> seconds;
  while (seconds.size() < 500) {
    if (const std::optional<double> took = deaths.One()) seconds.push_back(*took);
  }
  std::sort(seconds.begin(), seconds.end());
  WARN("500 deaths, s until the engine answers with a newer version: median " << seconds[250] << ", most "
                                                                              << seconds.back());
}

// Needs root: no other user can become another one, not even in a user namespace of its own, where the receiver would
// see its own user all the same.
TEST_CASE("A peer of another user is refused, even where it can reach the socket") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can become another user");
    return;
  }
  RanksFixture fixture;
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

}  // namespace lockstep::engine

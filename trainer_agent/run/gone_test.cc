// Ranks that are killed or close: what the others hear, and which rank may take their place when.
#include <fcntl.h>

#include <optional>

#include "common/base/status_testing.h"
#include "common/os/child.h"
#include "trainer_agent/run/publish_fixture.h"

namespace lockstep::run {
namespace {

constexpr ByteRange kFirst{0, 80000};
constexpr ByteRange kSecond{80000, 40000};

// A rank in a process of its own, which does `work`, and then nothing until it is killed.
class RankProcess {
 public:
  RankProcess(const Host& host, uint32_t rank, uint32_t ranks, const std::function<void(client::RankClient&)>& work)
      : child_(::fork, [&] { Run(host.Options(rank, ranks), work); }), pid_(child_.pid()) {
    done_.second.Reset();
    char done = 0;
    REQUIRE(::read(done_.first.get(), &done, 1) == 1);
  }

  void Kill() { child_.Kill(); }
  std::string name() const { return "(pid " + std::to_string(pid_) + ")"; }

 private:
  static std::pair<os::UniqueFd, os::UniqueFd> Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    return {os::UniqueFd(ends[0]), os::UniqueFd(ends[1])};
  }

  [[noreturn]] void Run(client::RankOptions options, const std::function<void(client::RankClient&)>& work) {
    try {
      const auto rank = client::RankClient::Open(std::move(options));
      if (rank.ok()) {
        work(**rank);
        (void)!::write(done_.second.get(), "y", 1);
        while (true) ::pause();
      }
    } catch (...) {  // an assertion: the other process is the one that reports
    }
    ::_exit(1);
  }

  std::pair<os::UniqueFd, os::UniqueFd> done_ = Pipe();
  os::Child child_;
  const pid_t pid_;
};

// Two ranks with version 1 served, the second a process that then does `work`.
struct TwoRanks {
  explicit TwoRanks(const std::function<void(client::RankClient&)>& work) {
    PublishPart(*zero, 1, kFirst);
    one.emplace(host, 1, 2, [&](client::RankClient& rank) {
      PublishPart(rank, 1, kSecond);
      work(rank);
    });
    host.Await(1);
  }

  // Another takes the killed one's place.
  void PublishTogether(Version version) {
    auto options = host.Options(1, 2);
    options.run = zero->run();
    const auto back = client::RankClient::Open(options);
    REQUIRE(back.ok());
    PublishPart(**back, version, kSecond);
    PublishPart(*zero, version, kFirst);
    host.Await(version);
    CHECK(FirstByte(host.run(), version) == std::byte{static_cast<uint8_t>(version)});
  }

  Host host;
  const std::unique_ptr<client::RankClient> zero = host.Connect(0, 2);
  std::optional<RankProcess> one;
};

TEST_CASE("A rank that waits to begin learns at once which rank was killed without the version before") {
  TwoRanks ranks([](client::RankClient& rank) { Begin(rank, 2); });
  PublishPart(*ranks.zero, 2, kFirst);
  Status heard;
  std::thread waiting([&] { heard = ranks.zero->Begin(3).status(); });
  std::this_thread::sleep_for(milliseconds(300));  // told while it waits, or when it calls: both are right
  ranks.one->Kill();
  waiting.join();
  CHECK_THAT(heard, FailsWith(ErrorCode::kAborted, "rank 1 " + ranks.one->name() + " is gone: its "));
  CHECK(FirstByte(ranks.host.run(), 1) == std::byte{1});
  ranks.PublishTogether(3);
}

TEST_CASE("A rank that begins between the end of another's connection and of its process is told that it ended") {
  const bool amid_a_version = GENERATE(true, false);
  TwoRanks ranks([&](client::RankClient& rank) {
    if (amid_a_version) Begin(rank, 2);
    rank.Leave();
  });
  REQUIRE(Eventually([&] { return ranks.host.connected() == 1; }));
  std::thread ending([&] {
    std::this_thread::sleep_for(milliseconds(5));
    ranks.one->Kill();
  });
  CHECK_THAT(ranks.zero->Begin(3),
             FailsWith(ErrorCode::kAborted, "rank 1 " + ranks.one->name() + " is gone: its process has ended"));
  ending.join();
  ranks.PublishTogether(3);
}

TEST_CASE("A rank that writes learns at its commit which rank was killed") {
  TwoRanks ranks([](client::RankClient& rank) { Write(rank, Begin(rank, 2), {80000, 960}, 2); });
  std::byte* const data = Begin(*ranks.zero, 2);
  ranks.one->Kill();
  REQUIRE(Eventually([&] { return ranks.host.aborted() == 1; }));
  Write(*ranks.zero, data, kFirst, 2);
  CHECK_THAT(ranks.zero->Commit(), FailsWith(ErrorCode::kAborted, "rank 1 " + ranks.one->name() + " is gone: its ",
                                             "version 2 was aborted, and what is served stays"));
  CHECK(FirstByte(ranks.host.run(), 1) == std::byte{1});
  ranks.PublishTogether(3);
}

TEST_CASE("Nothing is begun without a rank that was killed between versions, until another takes its place") {
  TwoRanks ranks([](client::RankClient&) {});
  ranks.one->Kill();
  REQUIRE(Eventually([&] { return ranks.host.connected() == 1; }));
  for (const Version version : {2, 3}) {
    CHECK_THAT(ranks.zero->Begin(version),
               FailsWith(ErrorCode::kAborted, "rank 1 " + ranks.one->name() + " is gone: its process has ended",
                         "needs it: start it again, in run " + ToHex(ranks.zero->run())));
  }
  ranks.PublishTogether(3);
}

TEST_CASE("A rank that goes on without a version is told of one that was done with that and killed") {
  TwoRanks ranks([](client::RankClient& rank) { PublishPart(rank, 2, kSecond); });
  ranks.one->Kill();
  REQUIRE(Eventually([&] { return ranks.host.connected() == 1; }));
  CHECK_THAT(ranks.zero->Begin(3), FailsWith(ErrorCode::kAborted, "rank 1 " + ranks.one->name() + " is gone: its "));
  ranks.PublishTogether(4);
}

TEST_CASE("A rank that was done with a version before it was killed has its part in it") {
  TwoRanks ranks([](client::RankClient& rank) { PublishPart(rank, 2, kSecond); });
  ranks.one->Kill();
  REQUIRE(Eventually([&] { return ranks.host.connected() == 1; }));
  PublishPart(*ranks.zero, 2, kFirst);
  ranks.host.Await(2);
}

TEST_CASE("A thousand connections are opened, each right after the one before was closed amid a version") {
  Host host;
  for (int i = 0; i < 1000; ++i) {
    const auto rank = host.Connect();
    Begin(*rank, 1);
  }
}

TEST_CASE("A connection is opened right after one was closed of which a child has the descriptor") {
  Host host;
  auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  const os::Child child(::_Fork, [] {});  // runs no handlers: as of a process that knows nothing of them
  SECTION("and it is gone") {
    rank.reset();
  }
  SECTION("and only left") {
    rank->Leave();
  }
  const auto next = host.Connect();
  host.Publish(*next, 1, 2);
}

TEST_CASE("A trainer is followed right after it was killed amid a version, although a child of it lives") {
  Host host;
  int pids[2];
  REQUIRE(::pipe2(pids, O_CLOEXEC) == 0);
  RankProcess trainer(host, 0, 1, [&](client::RankClient& rank) {
    Begin(rank, 1);
    const pid_t child = ::_Fork();
    if (child == 0) {
      ::alarm(60);  // also where the test fails it ends
      while (true) ::pause();
    }
    (void)!::write(pids[1], &child, sizeof child);
  });
  trainer.Kill();
  const auto restarted = host.Connect();
  host.Publish(*restarted, 1, 2);
  pid_t child = 0;
  REQUIRE(::read(pids[0], &child, sizeof child) == sizeof child);
  CHECK(::kill(child, SIGKILL) == 0);
  ::close(pids[0]);
  ::close(pids[1]);
}

}  // namespace
}  // namespace lockstep::run

// Ranks that are killed or close, and who follows them.
#include <fcntl.h>

#include "common/os/child.h"
#include "trainer_agent/publish/publish_fixture.h"

namespace lockstep::publish {
namespace {

// A rank in a process of its own, which does `work`, and then nothing until it is killed.
class RankProcess {
 public:
  RankProcess(const Host& host, uint32_t rank, uint32_t ranks, const std::function<void(buffer::RankClient&)>& work)
      : child_(::fork, [&] { Run(host.Options(rank, ranks), work); }) {
    done_.second.Reset();
    char done = 0;
    REQUIRE(::read(done_.first.get(), &done, 1) == 1);
  }

  void Kill() { child_.Kill(); }

 private:
  static std::pair<os::UniqueFd, os::UniqueFd> Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    return {os::UniqueFd(ends[0]), os::UniqueFd(ends[1])};
  }

  [[noreturn]] void Run(buffer::RankOptions options, const std::function<void(buffer::RankClient&)>& work) {
    try {
      const auto rank = buffer::RankClient::Open(std::move(options));
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
};

// A child of this process that knows nothing of what it inherits.
pid_t LeaveChild() {
  const pid_t child = ::_Fork();
  if (child == 0) {
    while (true) ::pause();
  }
  return child;
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
  const pid_t child = LeaveChild();
  rank.reset();
  rank = host.Connect();
  host.Publish(*rank, 1, 2);
  CHECK(::kill(child, SIGKILL) == 0);
  CHECK(::waitpid(child, nullptr, 0) == child);
}

TEST_CASE("A trainer is followed right after it was killed amid a version, although a child of it lives") {
  Host host;
  int pids[2];
  REQUIRE(::pipe2(pids, O_CLOEXEC) == 0);
  RankProcess trainer(host, 0, 1, [&](buffer::RankClient& rank) {
    Begin(rank, 1);
    const pid_t child = LeaveChild();
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
}  // namespace lockstep::publish

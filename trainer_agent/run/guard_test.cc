// Versions that have a guard: what one may say, and when their ranks are told.
#include "trainer_agent/run/guard.h"

#include <atomic>
#include <optional>
#include <thread>

#include "common/base/status_testing.h"
#include "common/os/child.h"
#include "trainer_agent/run/publish_fixture.h"

namespace lockstep::run {
namespace {

TEST_CASE("A guard is a JSON object of what is known, within its limits") {
  const auto guard = ReadGuard(R"({"nonfinite": "refuse", "density": [0.1, 0.5], "largest_step": 2})");
  REQUIRE(guard.ok());
  CHECK((guard->refuse_nonfinite && guard->least_density == 0.1 && guard->most_density == 0.5 &&
         guard->largest_step == 2));
  CHECK_FALSE(ReadGuard(R"({"nonfinite": "count"})")->refuse_nonfinite);
  for (const char* text :
       {"", "[]", "null", "{", "\xff", R"({"nonfinite": "x"})", R"({"nonfinite": 1})", R"({"density": [0.5, 0.1]})",
        R"({"density": [0, 2]})", R"({"density": [0]})", R"({"density": ["0", 1]})", R"({"largest_step": -1})",
        R"({"largest_step": "1"})", R"({"other": 1})"}) {
    CHECK_THAT(ReadGuard(text), FailsWith(ErrorCode::kBadData, "guard: "));
  }
  CHECK(ReadGuard(std::string(kMaxGuardText, ' ') + "{}").status().code() == ErrorCode::kBadData);
}

TEST_CASE("Ranks that give other guards write no version") {
  Host host;
  auto options = host.Options(0, 2);
  options.guard = "{}";
  const auto zero = Host::Connect(options);
  const auto one = host.Connect(1, 2);
  REQUIRE(zero->Begin(1).ok());
  CHECK_THAT(one->Begin(1), FailsWith(ErrorCode::kBadData, "rank 1 gives version 1 another guard than the others"));
  CHECK(host.aborted() == 1);
}

TEST_CASE("A version with a guard is committed once it was compared, and its rank waits for that") {
  Host host;
  auto options = host.Options();
  options.guard = "{}";
  const auto rank = Host::Connect(options);
  host.Publish(*rank, 1, 1);
  std::optional<Host::Standstill> comparing(std::in_place, host);
  Write(*rank, Begin(*rank, 2), {0, 120000}, 2);
  Status committed(ErrorCode::kInternal, "it did not return");
  std::atomic<bool> returned{false};
  std::thread committing([&] {
    committed = rank->Commit();
    returned = true;
  });
  const auto publisher = [&] { return host.registry().Snapshot().at(0).publisher; };
  REQUIRE(Eventually([&] { return publisher()->status().writing_version == 0; }));  // the agent has its commit
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(publisher()->newest_version() == 1);
  CHECK_FALSE(returned);

  SECTION("by the agent") {
    comparing.reset();
  }
  SECTION("by the next agent, where that one ends before") {
    std::thread stopping([&] { host.Stop(); });
    std::this_thread::sleep_for(milliseconds(50));
    comparing.reset();
    stopping.join();
    host.Start();
  }
  committing.join();
  CHECK(committed.ok());
  CHECK(host.Await(2).manifest->held.version == 2);
}

TEST_CASE("A number that was refused is taken again, and what it was refused for is gone") {
  Host host;
  auto options = host.Options();
  options.guard = R"({"largest_step": 0.5})";
  const auto rank = Host::Connect(options);
  host.Publish(*rank, 1, 0);
  for (const int value : {0x3f, 0x40}) {  // 0.7470703125 and 3.0039: both are too far from 0
    Write(*rank, Begin(*rank, 2), {0, 120000}, value);
    CHECK_THAT(rank->Commit(), FailsWith(ErrorCode::kBadData, "version 2 of model actor: guard: an element changed by ",
                                         "more than 0.5, in first, second"));
  }
  CHECK(host.aborted() == 2);
  host.Publish(*rank, 2, 0x3e);
  CHECK(host.Await(2).changes->base == 1);
}

TEST_CASE("A rank that waits for a verdict is told of one that will never commit") {
  Host host;
  auto options = host.Options(0, 2);
  options.guard = "{}";
  const auto zero = Host::Connect(options);
  const auto commit = [&](const std::function<void()>& then) {
    Status committed;
    std::thread committing([&] {
      Write(*zero, Begin(*zero, 1), {0, 80000}, 1);
      committed = zero->Commit();
    });
    std::this_thread::sleep_for(milliseconds(50));
    then();
    committing.join();
    return committed;
  };
  SECTION("for its process ends") {
    int pipe[2];
    REQUIRE(::pipe(pipe) == 0);
    os::Child one(::fork, [&] {
      const auto rank = client::RankClient::Open(host.Options(1, 2));
      (void)!::write(pipe[1], "y", 1);
      while (true) ::pause();
    });
    char there = 0;
    REQUIRE(::read(pipe[0], &there, 1) == 1);
    const Status told = commit([&] { one.Kill(); });
    CHECK_THAT(told, FailsWith(ErrorCode::kAborted, "rank 1 ", "is gone: its process has ended"));
  }
  SECTION("for its process ends, some time after its connection") {
    int there[2];
    int go[2];
    REQUIRE((::pipe(there) == 0 && ::pipe(go) == 0));
    const os::Child one(::fork, [&] {
      auto rank = client::RankClient::Open(host.Options(1, 2));
      char byte = 'y';
      (void)!::write(there[1], &byte, 1);
      (void)!::read(go[0], &byte, 1);
      (*rank).reset();
      std::this_thread::sleep_for(milliseconds(400));
      ::_exit(0);
    });
    char byte = 'y';
    REQUIRE(::read(there[0], &byte, 1) == 1);
    const Status told = commit([&] { REQUIRE(::write(go[1], &byte, 1) == 1); });
    CHECK_THAT(told, FailsWith(ErrorCode::kAborted, "rank 1 ", "is gone: its process has ended"));
  }
  SECTION("for its share does not fit") {
    auto other = host.Options(1, 2);
    other.share = ShareOf({0, 120000});
    const Status told = commit([&] { CHECK_FALSE(client::RankClient::Open(other).ok()); });
    CHECK_THAT(told, FailsWith(ErrorCode::kBadData, "rank 1 is not let in"));
  }
}

TEST_CASE("NaN is counted as versions come, over blocks that are reported unchanged and over a restart") {
  Host host;
  const auto rank = host.Connect();
  const auto nonfinite = [&](Version version) { return host.Await(version).changes->all.nonfinite; };
  host.Publish(*rank, 1, 0xff);  // every element is NaN
  CHECK(nonfinite(1) == 60000);
  std::byte* const data = Begin(*rank, 2);
  Write(*rank, data, {0, 4096}, 1);
  std::memset(data + 4096, 0xff, 115904);
  ReportUnchanged(*rank, {4096, 115904});
  REQUIRE(rank->Commit().ok());
  CHECK(nonfinite(2) == 60000 - 2048);
  host.Restart();
  CHECK(nonfinite(2) == 60000 - 2048);
}

}  // namespace
}  // namespace lockstep::run

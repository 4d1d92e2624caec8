// Versions that have a guard: what one may say, and when their ranks are told.
#include "trainer_agent/run/guard.h"

#include <optional>
#include <thread>

#include "common/base/status_testing.h"
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
  std::thread committing([&] { committed = rank->Commit(); });
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(host.registry().Snapshot().at(0).publisher->newest_version() == 1);

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

}  // namespace
}  // namespace lockstep::run

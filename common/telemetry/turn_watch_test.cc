#include "common/telemetry/turn_watch.h"

#include <catch2/catch.hpp>
#include <latch>
#include <thread>

#include "common/base/worker_pool.h"

namespace lockstep::telemetry {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Checks every second of made-up time, until `live` is found or a minute of real time is over.
bool Finds(TurnWatch& watch, TurnWatch::Clock::time_point& now, bool live) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (watch.Check(now += seconds(1)) != live) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

TEST_CASE("A thread that is blocked is found after its limit, and found to get on again") {
  WorkerPool pool(1);
  TurnWatch watch;
  watch.Add("workers", seconds(30),
            TurnWatch::Give([&](std::function<void()> turned) { pool.Post(std::move(turned)); }));
  auto now = TurnWatch::Clock::now();
  for (int i = 0; i < 100; ++i) {
    REQUIRE(Finds(watch, now, true));
    std::this_thread::sleep_for(milliseconds(1));
  }
  std::latch blocked(1);
  pool.Post([&] { blocked.wait(); });
  CHECK(Finds(watch, now, false));
  blocked.count_down();
  CHECK(Finds(watch, now, true));
}

TEST_CASE("Threads are stuck when they do not get on for longer than the limit, and not before") {
  TurnWatch watch;
  bool turns = true;
  watch.Add("session", seconds(30), TurnWatch::Turned([&] { return turns; }));
  auto now = TurnWatch::Clock::now();
  CHECK(watch.Check(now));
  turns = false;
  for (int i = 0; i < 30; ++i) CHECK(watch.Check(now += seconds(1)));
  CHECK_FALSE(watch.Check(now += seconds(1)));
  turns = true;
  CHECK(watch.Check(now));
}

TEST_CASE("A process that was stopped for an hour has stuck no thread") {
  TurnWatch watch;
  watch.Add("session", seconds(30), TurnWatch::Turned([] { return false; }));
  const auto now = TurnWatch::Clock::now();
  CHECK(watch.Check(now));
  CHECK(watch.Check(now + std::chrono::hours(1)));
}

}  // namespace
}  // namespace lockstep::telemetry

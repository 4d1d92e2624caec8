#include "common/telemetry/log_limit.h"

#include <catch2/catch.hpp>

namespace lockstep::telemetry {
namespace {

using namespace std::literals;

TEST_CASE("A peer gets a line at once, and one a minute with how often it happened since") {
  LogLimit limit;
  const LogLimit::Clock::time_point now{1h};
  CHECK(limit.Count("a", now) == 1);
  for (int i = 0; i < 999; ++i) CHECK(limit.Count("a", now + 59s) == 0);
  CHECK(limit.Count("b", now + 59s) == 1);
  CHECK(limit.Count("a", now + 60s) == 1000);
  CHECK(limit.Count("a", now + 61s) == 0);
}

TEST_CASE("However many peers there are, lines are few and so is what is kept") {
  LogLimit limit;
  const LogLimit::Clock::time_point now{1h};
  uint64_t lines = 0;
  for (int i = 0; i < 100'000; ++i) lines += limit.Count(std::to_string(i), now) > 0 ? 1 : 0;
  CHECK(lines == LogLimit::kMostPeers + 1);
  CHECK(limit.Count("another", now + 60s) == 1);
}

}  // namespace
}  // namespace lockstep::telemetry

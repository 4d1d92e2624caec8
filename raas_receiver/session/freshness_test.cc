#include "raas_receiver/session/freshness.h"

#include <catch2/catch.hpp>

namespace lockstep::session {
namespace {

using std::chrono::minutes;

VersionRef VersionOf(Version version) {
  return {RunId{{1}}, version};
}

TEST_CASE("A version is too old when the agent has had a newer one for longer than the limit, and nothing came") {
  Freshness freshness(minutes(5));
  const auto begin = Freshness::Clock::now();
  CHECK(freshness.Update(VersionOf(1), false, begin));
  CHECK(freshness.Update(VersionOf(1), false, begin + minutes(60)));  // the trainer has made nothing newer
  CHECK(freshness.Update(VersionOf(1), true, begin + minutes(61)));
  CHECK(freshness.Update(VersionOf(1), true, begin + minutes(66)));
  CHECK_FALSE(freshness.Update(VersionOf(1), true, begin + minutes(67)));
  SECTION("until a newer one comes, also when the agent is ahead again") {
    CHECK(freshness.Update(VersionOf(2), true, begin + minutes(68)));
    CHECK(freshness.Update(VersionOf(2), true, begin + minutes(73)));
    CHECK_FALSE(freshness.Update(VersionOf(2), true, begin + minutes(74)));
  }
  SECTION("until it is the newest") {
    CHECK(freshness.Update(VersionOf(1), false, begin + minutes(68)));
    CHECK(freshness.Update(VersionOf(1), true, begin + minutes(69)));
  }
}

TEST_CASE("Without a limit nothing is too old") {
  Freshness freshness{minutes(0)};
  const auto begin = Freshness::Clock::now();
  CHECK(freshness.Update(VersionOf(1), true, begin));
  CHECK(freshness.Update(VersionOf(1), true, begin + std::chrono::hours(1000)));
}

}  // namespace
}  // namespace lockstep::session

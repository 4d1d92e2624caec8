#include "trainer_agent/serve/lane_limits.h"

#include <catch2/catch.hpp>

namespace lockstep::serve {
namespace {

constexpr uint64_t kRate = 1000;
constexpr uint64_t kHour = 3600 * kRate;  // bytes
constexpr std::chrono::minutes kNearlyAnHour{59};

TEST_CASE("A receiver's lanes wait for each other, and not for those of another receiver") {
  LaneLimits limits(0, kRate);
  LanePace one = limits.PaceOf({"", "one"});
  LanePace also_one = limits.PaceOf({"", "one"});
  LanePace two = limits.PaceOf({"", "two"});
  CHECK(one.Book(kHour).count() == 0);
  CHECK(also_one.Book(1) > kNearlyAnHour);
  CHECK(two.Book(1).count() == 0);
}

TEST_CASE("A receiver's lanes do not wait for those of one that only calls itself the same") {
  LaneLimits limits(0, kRate);
  LanePace own = limits.PaceOf({"spiffe://test/infer-0", "one"});
  LanePace other = limits.PaceOf({"spiffe://test/infer-1", "one"});
  LanePace also_own = limits.PaceOf({"spiffe://test/infer-0", "one"});
  CHECK(other.Book(kHour).count() == 0);
  CHECK(own.Book(kHour).count() == 0);
  CHECK(also_own.Book(1) > kNearlyAnHour);
}

TEST_CASE("All lanes wait for each other when the limit is of all") {
  LaneLimits limits(kRate, 0);
  LanePace one = limits.PaceOf({"", "one"});
  LanePace two = limits.PaceOf({"", "two"});
  CHECK(one.Book(kHour).count() == 0);
  CHECK(two.Book(1) > kNearlyAnHour);
}

TEST_CASE("What was booked and not sent counts for the next time, and is returned at the end") {
  LaneLimits limits(0, kRate);
  LanePace stays = limits.PaceOf({"", "one"});
  {
    LanePace leaves = limits.PaceOf({"", "one"});
    CHECK(leaves.Book(kHour).count() == 0);
    CHECK(leaves.Book(kHour).count() == 0);  // the same bytes
    leaves.Sent(1000);
  }
  CHECK(stays.Book(1) < std::chrono::minutes(1));
}

}  // namespace
}  // namespace lockstep::serve

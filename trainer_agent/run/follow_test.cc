// Versions that are followed while they are written.
#include "common/base/status_testing.h"
#include "trainer_agent/run/publish_fixture.h"

namespace lockstep::run {
namespace {

TEST_CASE("A follower finds a version's blocks while it is written, and its end once it is served") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  DeltaFeed& feed = host.run().feed();
  const auto follower = feed.Follow();
  std::byte* const data = Begin(*rank, 2);
  const auto delta = *feed.Find(1);
  REQUIRE(delta != nullptr);
  Write(*rank, data, {0, 40960}, 2);
  CHECK(Eventually([&] { return delta->Since(0).blocks.size() == 10; }));
  CHECK_FALSE(delta->Since(0).sealed);
  Write(*rank, data, {40960, 79040}, 2);
  REQUIRE(rank->Commit().ok());
  host.Await(2);
  CHECK(delta->Since(0).sealed);
  CHECK(delta->Since(0).blocks.size() == 30);
  CHECK(*feed.Find(2) == nullptr);
  CHECK(host.run().deltas().RouteFrom(1, DeltaStore::kNewest, 120000).size() == 1);
}

TEST_CASE("Followers are notified of a version that is aborted, for whatever reason, and find the next one") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  DeltaFeed& feed = host.run().feed();
  const auto follower = feed.Follow();
  std::byte* const data = Begin(*rank, 2);
  const auto delta = *feed.Find(1);
  REQUIRE(delta != nullptr);
  Write(*rank, data, {0, 4096}, 2);
  CHECK_THAT(rank->Commit(), FailsWith(ErrorCode::kBadData, "never reported some of its bytes"));
  CHECK(delta->Since(0).aborted.code() == ErrorCode::kAborted);
  CHECK(*feed.Find(1) == nullptr);
  REQUIRE(rank->Begin(3).ok());
  CHECK((*feed.Find(1))->target() == 3);
}

TEST_CASE("Nothing is kept for followers when there are none, and nothing after they were served") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  DeltaFeed& feed = host.run().feed();
  REQUIRE(rank->Begin(2).ok());
  CHECK(*feed.Find(1) == nullptr);
  REQUIRE(rank->Abort("on purpose").ok());
  const auto follower = feed.Follow();
  REQUIRE(rank->Begin(3).ok());
  const std::weak_ptr<StreamingDelta> delta = *feed.Find(1);
  CHECK_FALSE(delta.expired());
  REQUIRE(rank->Abort("on purpose").ok());
  CHECK(delta.expired());
}

}  // namespace
}  // namespace lockstep::run

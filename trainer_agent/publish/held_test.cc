// What a rank is told of the half that it is to fill.
#include "trainer_agent/publish/publish_fixture.h"

namespace lockstep::publish {
namespace {

// Begins `version`, answers what its half held, and publishes it or not.
Version HeldBefore(buffer::RankClient& rank, Version version, bool commit = true) {
  std::byte* const data = Begin(rank, version);
  const Version held = rank.half_held();
  if (!commit) {
    REQUIRE(rank.Abort().ok());
    return held;
  }
  Write(rank, data, {0, 120000}, static_cast<int>(version));
  REQUIRE(rank.Commit().ok());
  return held;
}

TEST_CASE("A rank is told which version the half that it fills holds") {
  Host host;
  const auto rank = host.Connect();
  CHECK(HeldBefore(*rank, 1) == 0);
  CHECK(HeldBefore(*rank, 2) == 0);
  CHECK(HeldBefore(*rank, 3) == 1);
  CHECK(HeldBefore(*rank, 70) == 2);
  CHECK(HeldBefore(*rank, 71) == 3);
  CHECK(HeldBefore(*rank, (Version{1} << 32) + 70) == 0);  // so far back that it cannot be said
  CHECK(HeldBefore(*rank, (Version{1} << 32) + 71) == 0);
  CHECK(HeldBefore(*rank, (Version{1} << 32) + 72) == (Version{1} << 32) + 70);
}

TEST_CASE("An aborted version's half holds nothing, and the other one what it held") {
  Host host;
  const auto rank = host.Connect();
  for (const Version version : {1, 2}) HeldBefore(*rank, version);
  CHECK(HeldBefore(*rank, 3, false) == 1);
  CHECK(HeldBefore(*rank, 4) == 0);
  CHECK(HeldBefore(*rank, 5) == 2);
  CHECK(HeldBefore(*rank, 6) == 4);
}

TEST_CASE("Every rank of a version is told the same") {
  Host host;
  const auto zero = host.Connect(0, 2);
  const auto one = host.Connect(1, 2);
  for (Version version = 1; version <= 4; ++version) {
    PublishPart(*zero, version, {0, 60000});
    const Version held = zero->half_held();
    PublishPart(*one, version, {60000, 60000});
    CHECK(held == (version <= 2 ? 0 : version - 2));
    CHECK(one->half_held() == held);
  }
}

TEST_CASE("A restarted agent knows what the halves hold, and that one which was being written holds nothing") {
  Host host;
  {
    const auto rank = host.Connect();
    for (const Version version : {1, 2}) host.Publish(*rank, version, static_cast<int>(version));
    host.Restart();
    CHECK(HeldBefore(*rank, 3) == 1);
    host.Await(3);
    Begin(*rank, 4);
    host.Stop();
  }
  host.Start();
  buffer::RankOptions options = host.Options();
  options.run = host.run().run();
  const auto rank = buffer::RankClient::Open(options);
  REQUIRE(rank.ok());
  CHECK(HeldBefore(**rank, 5) == 0);
  CHECK(HeldBefore(**rank, 6) == 3);
}

TEST_CASE("Once a version was withdrawn nobody vouches for what was there before the next") {
  Host host;
  const auto rank = host.Connect();
  for (const Version version : {1, 2}) host.Publish(*rank, version, static_cast<int>(version));
  host.catalog().Retract(host.shared_run(), 2, {ErrorCode::kCorrupt, "bits were lost"});
  CHECK(HeldBefore(*rank, 3) == 0);
  CHECK(HeldBefore(*rank, 4) == 0);
  CHECK(HeldBefore(*rank, 5) == 3);
}

}  // namespace
}  // namespace lockstep::publish

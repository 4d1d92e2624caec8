// Versions that turn out not to be what was committed, and what becomes of the next.
#include "common/base/status_testing.h"
#include "trainer_agent/run/publish_fixture.h"
#include "trainer_agent/run/scrubber.h"

namespace lockstep::run {
namespace {

TEST_CASE("A version whose slot does not hold what was committed is withdrawn, and the next one is whole") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  std::byte* const data = Begin(*rank, 2);
  std::memset(data, 1, 120000);
  const bool reported_falsely = GENERATE(true, false);
  if (reported_falsely) data[50'000] = std::byte{9};
  ReportUnchanged(*rank, {0, 120000});
  REQUIRE(rank->Commit().ok());
  host.Await(2);
  if (!reported_falsely) data[50'000] = std::byte{9};  // written after the commit
  const bool suspected = GENERATE(true, false);
  Scrubber scrubber(&host.catalog(), milliseconds(suspected ? 0 : 20));
  if (suspected) scrubber.Suspect("actor", "infer-0");
  REQUIRE(Eventually([&] { return !host.run().Newest(); }));
  CHECK_THAT(host.run().RequireNewest(),
             FailsWith(ErrorCode::kCorrupt, "version 2 of model actor was withdrawn", "tensor \"first\""));
  CHECK(Eventually([&] { return host.run().deltas().Retained().empty(); }));
  CHECK(UseFirstBlock(host.run(), 2) == ErrorCode::kState);
  std::byte* const next = Begin(*rank, 3);
  std::memset(next, 1, 120000);
  next[50'000] = std::byte{9};
  ReportUnchanged(*rank, {0, 120000});  // as in the slot before: but that is not what it was, so all is read
  REQUIRE(rank->Commit().ok());
  CHECK(HasBytes(host.Await(3), Bytes(next, next + 120000)));
  CHECK(host.run().deltas().Retained().empty());  // it leads nowhere from what receivers hold
}

// Writes bytes as in the slot before, reports them so, and commits.
Status CommitUnchanged(client::RankClient& rank, std::byte* data, int value) {
  std::memset(data, value, 120000);
  ReportUnchanged(rank, {0, 120000});
  return rank.Commit();
}

void Withdraw(const Host& host, Version version) {
  host.catalog().Retract(host.shared_run(), version, {ErrorCode::kCorrupt, "bits were lost"});
}

TEST_CASE("A version that is written when the one before is withdrawn is aborted, and the next one is whole") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  host.Publish(*rank, 2, 2);
  std::byte* const data = Begin(*rank, 3);
  Withdraw(host, 2);
  CHECK_THAT(CommitUnchanged(*rank, data, 2),
             FailsWith(ErrorCode::kAborted, "version 2, which it was compared with, was withdrawn meanwhile",
                       "publish a newer version"));
  CHECK(host.aborted() == 1);
  CHECK_THAT(host.run().RequireNewest(), FailsWith(ErrorCode::kCorrupt, "bits were lost"));
  std::byte* const next = Begin(*rank, 4);
  REQUIRE(CommitUnchanged(*rank, next, 4).ok());  // and was not: so it shows whether all is read
  CHECK(HasBytes(host.Await(4), Bytes(120000, std::byte{4})));
  CHECK(host.run().deltas().Retained().empty());
}

TEST_CASE("A version that is compared when the one before is withdrawn is not served, and its number is used up") {
  Host host;
  const auto rank = host.Connect();
  host.Publish(*rank, 1, 1);
  host.Publish(*rank, 2, 2);
  std::byte* const data = Begin(*rank, 3);
  {
    const Host::Standstill standstill(host);
    REQUIRE(CommitUnchanged(*rank, data, 2).ok());
    Withdraw(host, 2);
  }
  REQUIRE(Eventually([&] { return host.aborted() == 1; }));
  CHECK_THAT(host.run().RequireNewest(), FailsWith(ErrorCode::kCorrupt, "bits were lost"));
  CHECK(UseFirstBlock(host.run(), 3) == ErrorCode::kState);
  CHECK(host.run().deltas().Retained().empty());
  CHECK_THAT(rank->Begin(3), FailsWith(ErrorCode::kState, "is not greater than the newest, 3"));
  host.Restart();
  CHECK_THAT(rank->Begin(3), FailsWith(ErrorCode::kAborted, "version 3 was committed once"));
  host.Publish(*rank, 4, 4);
}

}  // namespace
}  // namespace lockstep::run

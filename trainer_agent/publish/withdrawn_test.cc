// Versions that turn out not to be what was committed, and what becomes of the next.
#include "common/base/status_testing.h"
#include "trainer_agent/publish/publish_fixture.h"
#include "trainer_agent/store/scrubber.h"

namespace lockstep::publish {
namespace {

TEST_CASE("A version whose half does not hold what was committed is withdrawn, and the next one is whole") {
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
  store::Scrubber scrubber(&host.catalog(), milliseconds(suspected ? 0 : 20));
  if (suspected) scrubber.Suspect("actor");
  REQUIRE(Eventually([&] { return !host.run().Newest(); }));
  CHECK_THAT(host.run().RequireNewest(),
             FailsWith(ErrorCode::kCorrupt, "version 2 of model actor was withdrawn", "tensor \"first\""));
  CHECK(Eventually([&] { return host.run().deltas().Retained().empty(); }));
  CHECK(UseFirstBlock(host.run(), 2) == ErrorCode::kState);
  std::byte* const next = Begin(*rank, 3);
  std::memset(next, 1, 120000);
  next[50'000] = std::byte{9};
  ReportUnchanged(*rank, {0, 120000});  // as in the half before: but that is not what it was, so all is read
  REQUIRE(rank->Commit().ok());
  CHECK(HasBytes(host.Await(3), Bytes(next, next + 120000)));
  CHECK(host.run().deltas().Retained().empty());  // it leads nowhere from what receivers hold
}

}  // namespace
}  // namespace lockstep::publish

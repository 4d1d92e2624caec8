#include "common/wire/features.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"

namespace lockstep::wire {
namespace {

TEST_CASE("this release can encrypt lanes, and says so") {
  const peer::Peer self = Self("raas_receiver");
  CHECK(self.Can(kLaneTls));
  const auto met = MeetPeer(Self("trainer_agent"), peer::ToLine(self));
  REQUIRE(met.ok());
  CHECK(met->features == self.features);
}

TEST_CASE("a peer that does not say what it is is refused") {
  CHECK_THAT(MeetPeer(Self("trainer_agent"), ""), FailsWith(ErrorCode::kProtocol, "a peer says of itself \"\""));
}

TEST_CASE("a peer without a common protocol is refused by name") {
  const auto met = MeetPeer(Self("trainer_agent"), "raas_receiver/9.0.0 protocol=2-3");
  CHECK_THAT(met,
             FailsWith(ErrorCode::kProtocol, "raas_receiver 9.0.0 speaks protocols 2 to 3; upgrade the trainer_agent"));
}

}  // namespace
}  // namespace lockstep::wire

#include "common/peer/peer.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/base/version.h"

namespace lockstep::peer {
namespace {

TEST_CASE("a line carries the program, its release and its protocol; words behind them are passed over") {
  const auto peer = ParsePeer("trainer_agent/1.4.0 protocol=5 streaming codec-fast");
  REQUIRE(peer.ok());
  CHECK(peer->program == "trainer_agent");
  CHECK(peer->release == "1.4.0");
  CHECK(peer->protocol == 5);
}

TEST_CASE("this release names the project's version and speaks its protocol") {
  const std::string self = SelfLine("raas_receiver");
  CHECK(self == Cat("raas_receiver/", kVersion, " protocol=1"));
  CHECK(CheckPeer("trainer_agent", self).ok());
}

TEST_CASE("a peer of another protocol: the refusal names both, and which to upgrade") {
  CHECK_THAT(CheckPeer("trainer_agent", "raas_receiver/9.0.1 protocol=4"),
             FailsWith(ErrorCode::kProtocol, Cat("trainer_agent ", kVersion,
                                                 " speaks protocol 1, raas_receiver 9.0.1 speaks protocol 4; "
                                                 "upgrade the trainer_agent")));
}

TEST_CASE("what is no such line is refused, whole and quoted") {
  for (const std::string line :
       {"", "trainer_agent", "trainer_agent/1.0", "trainer_agent/ protocol=1", "/1.0 protocol=1", "a/1 protocol=0",
        "a/1 protocol=1-1", "a/1 protocol=", "a/1 protocol=1x", "a/1  protocol=1", "a/1\nb protocol=1",
        "a/1 protocol=99999999999"}) {
    CAPTURE(line);
    CHECK_THAT(ParsePeer(line), FailsWith(ErrorCode::kProtocol, "which is not NAME/RELEASE protocol="));
    CHECK(CheckPeer("trainer_agent", line).code() == ErrorCode::kProtocol);
  }
  CHECK_THAT(ParsePeer("a/1 protocol=1 " + std::string(kMaxPeerBytes, 'x')),
             FailsWith(ErrorCode::kProtocol, "a peer says of itself \"a/1 protocol=1 xxx"));
}

}  // namespace
}  // namespace lockstep::peer

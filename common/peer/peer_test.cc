#include "common/peer/peer.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/base/version.h"

namespace lockstep::peer {
namespace {

Peer Agent(uint32_t oldest, uint32_t newest) {
  return {"trainer_agent", "1.4.0", oldest, newest, {"streaming", "codec-fast"}};
}

TEST_CASE("a line carries everything that a peer says of itself") {
  const auto parsed = ParsePeer(ToLine(Agent(2, 5)));
  REQUIRE(parsed.ok());
  CHECK(ToLine(*parsed) == "trainer_agent/1.4.0 protocol=2-5 streaming codec-fast");
  CHECK(parsed->name() == "trainer_agent 1.4.0");
  CHECK(parsed->Can("streaming"));
  CHECK_FALSE(parsed->Can("liv"));
}

TEST_CASE("this release names the project's version and speaks what it says") {
  const Peer self = Self("raas_receiver");
  CHECK(ToLine(self) == "raas_receiver/" + std::string(kVersion) + " protocol=1-1");
  CHECK(CheckPeer(self, self).ok());
}

TEST_CASE("protocols that overlap by one are enough") {
  CHECK(CheckPeer(Agent(2, 5), Agent(5, 9)).ok());
  CHECK(CheckPeer(Agent(5, 9), Agent(2, 5)).ok());
}

TEST_CASE("peers without a common protocol: the refusal names both, and which to upgrade") {
  const Peer receiver{"raas_receiver", "0.9.1", 1, 2, {}};
  const Status old_other = CheckPeer(Agent(3, 4), receiver);
  CHECK(old_other.code() == ErrorCode::kProtocol);
  CHECK(old_other.message() ==
        "trainer_agent 1.4.0 speaks protocols 3 to 4, raas_receiver 0.9.1 speaks protocols 1 to 2; upgrade the "
        "raas_receiver");
  const Status old_self = CheckPeer(receiver, Agent(3, 3));
  CHECK(old_self.code() == ErrorCode::kProtocol);
  CHECK(old_self.message() ==
        "raas_receiver 0.9.1 speaks protocols 1 to 2, trainer_agent 1.4.0 speaks protocol 3; upgrade the "
        "raas_receiver");
}

TEST_CASE("what is no such line is refused, whole and quoted") {
  for (const std::string line :
       {"", "trainer_agent", "trainer_agent/1.0", "trainer_agent/ protocol=1-1", "/1.0 protocol=1-1",
        "a/1 protocol=0-1", "a/1 protocol=2-1", "a/1 protocol=1", "a/1 protocol=1-1x", "a/1 protocol=1-1  streaming",
        "a/1 protocol=1-1 li\nve", "a/1 protocol=1-99999999999"}) {
    const auto parsed = ParsePeer(line);
    CAPTURE(line);
    CHECK_THAT(parsed, FailsWith(ErrorCode::kProtocol, "which is not NAME/RELEASE protocol="));
  }
  CHECK_THAT(ParsePeer("a/1 protocol=1-1 " + std::string(kMaxPeerBytes, 'x')),
             FailsWith(ErrorCode::kProtocol, "a peer says of itself \"a/1 protocol=1-1 xxx"));
}

TEST_CASE("every prefix of a line is refused or names the same program") {
  const std::string line = ToLine(Agent(2, 5));
  for (size_t bytes = 1; bytes < line.size(); ++bytes) {
    const auto parsed = ParsePeer(line.substr(0, bytes));
    CAPTURE(bytes);
    CHECK((parsed.ok() ? parsed->name() : "trainer_agent 1.4.0") == "trainer_agent 1.4.0");
    CHECK((parsed.ok() || parsed.status().code() == ErrorCode::kProtocol));
  }
}

}  // namespace
}  // namespace lockstep::peer

#include "raas_receiver/session/version_follower.h"

#include <catch2/catch.hpp>
#include <thread>

#include "common/base/status_testing.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"
#include "raas_receiver/origin/agent_origin.h"
#include "raas_receiver/origin/test_agent.h"
#include "raas_receiver/replica/replica_fixture.h"

namespace lockstep::session {
namespace {

// The agent at an address, as the origin of a model.
struct Actor {
  WorkerPool pool{1};
  net::IoThreads io{1, [](std::string_view what) { throw std::logic_error(std::string(what)); }};
  std::unique_ptr<origin::Origin> origin;

  explicit Actor(const net::HostPort& agent)
      : origin(origin::NewAgentOrigin({.model = "actor", .receiver = "test", .agent = agent}, io, pool)) {}
  Status Watch() const {
    return origin->Watch({}, [](const origin::Head&) {});
  }
};

struct Fixture {
  replica::ReplicaFixture replicas;
  std::unique_ptr<origin::TestAgent> agent = std::make_unique<origin::TestAgent>(replicas.model);
  ChangeSignal changed;
  Actor actor{agent->address()};
  std::stop_source stop;
  std::unique_ptr<VersionFollower> follower;

  explicit Fixture(bool follow = true, const std::string& peer = "") {
    if (!peer.empty()) agent->peer = peer;
    replicas.Open();
    follower = std::make_unique<VersionFollower>("actor", follow, *actor.origin, replicas.pair(), changed);
    follower->Start(stop.get_token());
  }
  ~Fixture() {
    stop.request_stop();
    follower->Join();
  }
  VersionRef held(Version version) const { return replicas.model.held(version); }
  ManifestDigest digest(Version version) const { return replicas.model.manifest(version).digest; }
  replica::PublishedVersion published(Version version) const { return {held(version), digest(version), {}, {}, 1}; }
  void WaitForNewest(Version version) {
    REQUIRE(changed.WaitFor(std::chrono::minutes(1), [&] { return follower->newest() == held(version); }));
  }
};

class SomeReceiver final : public v1::RaasReceiver::Service {
 public:
  grpc::Status GetStatus(grpc::ServerContext*, const v1::ReceiverStatusRequest*, v1::ReceiverStatus*) override {
    return grpc::Status::OK;
  }
};

// What a watch at the address of a server of `service` ends with.
Status WatchAt(grpc::Service& service) {
  const auto server = *rpc::RpcServer::Create({.address = "127.0.0.1:0", .services = {&service}});
  return Actor({"127.0.0.1", static_cast<uint16_t>(server->bound_port())}).Watch();
}

TEST_CASE("A receiver that listens where an agent was named is said to be one") {
  SomeReceiver receiver;
  const Status ended = WatchAt(receiver);
  CHECK_THAT(ended, FailsWith(ErrorCode::kProtocol, "is the address of a raas_receiver", "--agent"));
  v1::TrainerAgent::Service older;  // has none of the calls
  CHECK_THAT(WatchAt(older), FailsWith(ErrorCode::kProtocol, "is it of this version?"));
}

TEST_CASE("Every version that the agent announces is known, and is reason to sync until it is held") {
  Fixture fixture;
  fixture.WaitForNewest(1);
  CHECK(fixture.follower->Behind({}, {}));
  CHECK_FALSE(fixture.follower->Behind(fixture.held(1), fixture.digest(1)));
  fixture.agent->Publish();
  fixture.WaitForNewest(2);
  CHECK(fixture.follower->Behind(fixture.held(1), fixture.digest(1)));
  CHECK(fixture.follower->Behind(fixture.held(2), fixture.digest(1)));  // the same number, of other bytes
  CHECK(fixture.follower->head().layout == fixture.replicas.model.layout()->digest());
}

TEST_CASE("An agent without a common protocol is no news; the error names both, and which to upgrade") {
  Fixture fixture(true, "trainer_agent/9.0.0 protocol=7");
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (fixture.follower->error().empty() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  CHECK_THAT(fixture.follower->error(),
             Catch::Contains("trainer_agent 9.0.0 speaks protocol 7; upgrade the raas_receiver"));
  CHECK(fixture.follower->newest().nothing());
}

TEST_CASE("An agent's refusal for the protocol arrives as it was said") {
  replica::ReplicaFixture replicas;
  origin::TestAgent agent(replicas.model);
  agent.refusal = "speaks protocol 7; upgrade the raas_receiver";
  const Status refused = Actor(agent.address()).Watch();
  CHECK(refused.code() == ErrorCode::kProtocol);
  CHECK_THAT(refused.message(), Catch::EndsWith("speaks protocol 7; upgrade the raas_receiver"));
}

TEST_CASE("An announcement that makes no sense is no news; the error names the agent") {
  replica::ReplicaFixture replicas;
  origin::TestAgent agent(replicas.model);
  agent.twist_event = [](v1::VersionEvent& event) { event.set_layout_digest("short"); };
  CHECK_THAT(Actor(agent.address()).Watch(), FailsWith(ErrorCode::kProtocol, "agent 127.0.0.1:", "16-byte"));
}

TEST_CASE("A sync that brought more than was announced leaves nothing to sync, one that brought less does") {
  Fixture fixture;
  fixture.WaitForNewest(1);
  fixture.follower->Synced(fixture.held(1), fixture.published(3));
  CHECK_FALSE(fixture.follower->Behind(fixture.held(3), fixture.digest(3)));
  fixture.agent->Publish();
  fixture.WaitForNewest(2);
  fixture.follower->Synced(fixture.held(1), fixture.published(1));  // 2 was announced meanwhile
  CHECK(fixture.follower->Behind(fixture.held(1), fixture.digest(1)));
}

TEST_CASE("The memory of an announced layout is taken once, before a version comes") {
  Fixture fixture;
  CHECK(fixture.follower->layout() == nullptr);
  fixture.WaitForNewest(1);
  CHECK(fixture.follower->Unprepared());
  CHECK(fixture.follower->Prepare({}));
  REQUIRE(fixture.follower->layout() != nullptr);
  CHECK(fixture.follower->layout()->digest() == fixture.replicas.model.layout()->digest());
  CHECK_FALSE(fixture.follower->Unprepared());
  CHECK_FALSE(fixture.follower->Prepare({}));
}

TEST_CASE("Without following, versions are known but no reason to do anything") {
  Fixture fixture(false);
  fixture.WaitForNewest(1);
  CHECK_FALSE(fixture.follower->Behind({}, {}));
  CHECK_FALSE(fixture.follower->Unprepared());
  CHECK_FALSE(fixture.follower->Prepare({}));
}

TEST_CASE("A stream that is lost is an error until the agent announces something again") {
  Fixture fixture;
  fixture.WaitForNewest(1);
  CHECK(fixture.follower->error().empty());
  fixture.agent.reset();
  while (fixture.follower->error().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(fixture.follower->newest() == fixture.held(1));
}

}  // namespace
}  // namespace lockstep::session

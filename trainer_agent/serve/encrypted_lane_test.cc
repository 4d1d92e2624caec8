// Which peers get an encrypted lane, and which do not.
#include "common/base/status_testing.h"
#include "trainer_agent/serve/test_lane.h"

namespace lockstep::serve {
namespace {

struct Fixture {
  Served served;
  std::unique_ptr<LaneServer> server = StartLanes(served, {.encrypted = true});
  PullPlan plan = *served.pulls.Open(served.Request());

  // Whether the plan's ticket still opens a lane that works; it is used up then.
  bool Opens(size_t ticket) {
    TestLane lane(server->port());
    if (!lane.Encrypt(plan, ticket).ok() || lane.Enter(plan, ticket) != ErrorCode::kOk) return false;
    lane.Send(FullRequest(0, 1));
    return lane.ReceiveBlock().second == BlockOf(1, 0);
  }
};

TEST_CASE("An encrypted lane answers requests, with every block whole however the socket cuts them") {
  Fixture fixture;
  TestLane lane(fixture.server->port());
  REQUIRE(lane.Encrypt(fixture.plan, 0).ok());
  REQUIRE(lane.Enter(fixture.plan, 0) == ErrorCode::kOk);
  constexpr int kRequests = 60;  // 10 MB: more than sockets hold
  for (int i = 0; i < kRequests; ++i) lane.Send(FullRequest(0, kBlocks));
  for (const Version version : {2, 3}) fixture.served.Publish(version);  // which waits for readers of version 1
  for (int i = 0; i < kRequests; ++i) {
    for (BlockIndex block = 0; block < kBlocks; ++block) {
      const auto [frame, bytes] = lane.ReceiveBlock();
      if (bytes != BlockOf(frame.version, block)) FAIL("block " << block << " of request " << i);
    }
    REQUIRE(lane.Receive<wire::FrameHeader>().block == kBlocks);
  }
}

TEST_CASE("A ticket opens one encrypted lane once; another that has it too finds it used up") {
  Fixture fixture;
  TestLane first(fixture.server->port()), stolen(fixture.server->port());
  REQUIRE(first.Encrypt(fixture.plan, 0).ok());
  REQUIRE(stolen.Encrypt(fixture.plan, 0).ok());
  CHECK(stolen.Enter(fixture.plan, 0) == ErrorCode::kOk);
  CHECK(first.Enter(fixture.plan, 0) == ErrorCode::kPermission);
  CHECK(first.Closed());
  TestLane late(fixture.server->port());
  CHECK_THAT(late.Encrypt(fixture.plan, 0), FailsWith(ErrorCode::kPermission, "TLS handshake: "));
}

TEST_CASE("A peer that knows only a ticket's name gets no lane, and does not use the ticket up") {
  Fixture fixture;
  const Ticket& ticket = fixture.plan.tickets[0];
  for (int i = 0; i < 3; ++i) {
    TestLane stranger(fixture.server->port());
    CHECK_THAT(stranger.Encrypt(fixture.plan.pull_id, wire::NameOf(ticket), RandomId<Ticket>()),
               FailsWith(ErrorCode::kPermission, "TLS handshake: "));
  }
  TestLane vanished(fixture.server->port());
  REQUIRE(vanished.Encrypt(fixture.plan, 0).ok());
  vanished.socket().close();  // before its hello
  CHECK(fixture.Opens(0));
}

TEST_CASE("A ticket is of one pull: with another's number it opens nothing") {
  Fixture fixture;
  const PullPlan other = *fixture.served.pulls.Open(fixture.served.Request());
  TestLane lane(fixture.server->port());
  CHECK_THAT(lane.Encrypt(other.pull_id, wire::NameOf(fixture.plan.tickets[0]), fixture.plan.tickets[0]),
             FailsWith(ErrorCode::kPermission, "TLS handshake: "));
  TestLane mixed(fixture.server->port());
  REQUIRE(mixed.Encrypt(fixture.plan, 0).ok());
  mixed.Send(wire::LaneHello{.pull_id = other.pull_id, .ticket = other.tickets[0]});
  CHECK(mixed.Closed());
  CHECK(fixture.Opens(0));
}

TEST_CASE("Tickets of a pull that was closed open nothing") {
  Fixture fixture;
  fixture.served.pulls.Close(fixture.plan.pull_id, {}, "ok");
  TestLane lane(fixture.server->port());
  CHECK_THAT(lane.Encrypt(fixture.plan, 0), FailsWith(ErrorCode::kPermission, "TLS handshake: "));
}

TEST_CASE("Plaintext opens no encrypted lane, with a good ticket neither, and the ticket is not used up") {
  Fixture fixture;
  TestLane plain(fixture.server->port());
  plain.Send(wire::LaneHello{.pull_id = fixture.plan.pull_id, .ticket = fixture.plan.tickets[0]});
  CHECK(plain.Closed());
  CHECK(fixture.Opens(0));
}

TEST_CASE("TLS opens no plain lane, and is told so") {
  Fixture fixture;
  const auto plain = StartLanes(fixture.served);
  TestLane lane(plain->port());
  CHECK_THAT(lane.Encrypt(fixture.plan, 0), FailsWith(ErrorCode::kUnavailable, "peer"));
}

}  // namespace
}  // namespace lockstep::serve

// Pulls, and lanes over real TCP.
#include <catch2/catch.hpp>
#include <thread>

#include "common/wire/frame.h"
#include "trainer_agent/serve/lane_server.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep {
namespace {

using asio::ip::tcp;

TEST_CASE("What a receiver holds decides what it gets") {
  Served served;
  CHECK((*served.pulls.Open(served.Wish(1))).mode == PlanMode::kUpToDate);
  served.Publish(2);
  CHECK((*served.pulls.Open(served.Wish(1))).mode == PlanMode::kDelta);
  served.Publish(3);
  const auto folded = served.pulls.Open(served.Wish(1));
  CHECK(folded->mode == PlanMode::kFolded);
  CHECK(folded->target.version == 3);
  const auto full = served.pulls.Open(served.Wish());
  CHECK(full->mode == PlanMode::kFull);
  CHECK(full->payload_bytes == kBlocks * kBlock);
  CHECK(full->tickets.size() == 2);
  CHECK(served.pulls.Open(served.Wish()).status().code() == ErrorCode::kResourceExhausted);
}

TEST_CASE("Another run, other bytes under the same number, or a wish for full blocks get full") {
  Served served;
  served.Publish(2);
  PullWish other_run = served.Wish(1);
  other_run.held.run = RandomId<RunId>();
  CHECK((*served.pulls.Open(other_run)).mode == PlanMode::kFull);
  PullWish other_bytes = served.Wish(1);
  other_bytes.held_digest = RandomId<ManifestDigest>();
  CHECK((*served.pulls.Open(other_bytes)).mode == PlanMode::kFull);
  PullWish forced = served.Wish(2);
  forced.force_full = true;
  CHECK((*served.pulls.Open(forced)).mode == PlanMode::kFull);
}

TEST_CASE("Unknown models and foreign layouts are refused") {
  Served served;
  PullWish wish = served.Wish();
  wish.model = "nobody";
  CHECK(served.pulls.Open(wish).status().code() == ErrorCode::kNotFound);
  wish = served.Wish();
  wish.layout = {};
  CHECK(served.pulls.Open(wish).status().code() == ErrorCode::kState);
}

TEST_CASE("A ticket admits one lane once, and only to its pull") {
  Served served;
  const auto plan = served.pulls.Open(served.Wish());
  const auto other = served.pulls.Open(served.Wish());
  CHECK(served.pulls.Admit(other->pull_id, plan->tickets[0]).status().code() == ErrorCode::kPermission);
  CHECK(served.pulls.Admit(plan->pull_id, plan->tickets[0]).ok());
  CHECK(served.pulls.Admit(plan->pull_id, plan->tickets[0]).status().code() == ErrorCode::kPermission);
  const auto renewed = served.pulls.RenewTickets(plan->pull_id, 100);
  CHECK(renewed->size() == 3);
  CHECK(served.pulls.Admit(plan->pull_id, (*renewed)[2]).ok());
  served.pulls.Close(plan->pull_id, {served.run->run(), 1}, "ok");
  CHECK_FALSE(served.pulls.Admit(plan->pull_id, plan->tickets[1]).ok());
  CHECK(served.pulls.Reports("actor").at(0).outcome == "ok");
  CHECK(served.pulls.open_pulls("actor") == 1);
}

TEST_CASE("A full pull that was overtaken gets the steps from its oldest block on") {
  Served served;
  const auto plan = served.pulls.Open(served.Wish());
  served.Publish(2);
  served.Publish(3);
  const auto steps = served.pulls.CatchUp(plan->pull_id, 1);
  REQUIRE(steps.ok());
  CHECK(steps->steps.size() == 2);
  CHECK(steps->target.version == 3);
  CHECK((*served.pulls.CatchUp(plan->pull_id, 3)).steps.empty());
  CHECK(served.pulls.CatchUp(plan->pull_id + 1, 1).status().code() == ErrorCode::kNotFound);
}

TEST_CASE("Live lanes of a pull are limited, and the end of one makes room") {
  Served served;
  const auto plan = served.pulls.Open(served.Wish());
  std::vector<Pull::LaneLease> lanes;
  for (int i = 0; i < 6; ++i) {
    const auto ticket = served.pulls.RenewTickets(plan->pull_id, 1)->at(0);
    lanes.push_back(*served.pulls.Admit(plan->pull_id, ticket));
  }
  auto ticket = served.pulls.RenewTickets(plan->pull_id, 1)->at(0);
  CHECK(served.pulls.Admit(plan->pull_id, ticket).status().code() == ErrorCode::kResourceExhausted);
  lanes.pop_back();
  ticket = served.pulls.RenewTickets(plan->pull_id, 1)->at(0);
  CHECK(served.pulls.Admit(plan->pull_id, ticket).ok());
}

TEST_CASE("A pull that nobody touches expires") {
  Served served;
  PullTable pulls(&served.catalog, {.max_pulls = 1, .idle_timeout = std::chrono::milliseconds(20)});
  const auto plan = pulls.Open(served.Wish());
  CHECK_FALSE(pulls.Open(served.Wish()).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  CHECK(pulls.Open(served.Wish()).ok());
  CHECK_FALSE(pulls.Admit(plan->pull_id, plan->tickets[0]).ok());
}

// A lane's other end, in blocking calls.
class TestLane {
 public:
  explicit TestLane(uint16_t port) : socket_(context_) {
    socket_.connect(tcp::endpoint(asio::ip::make_address("127.0.0.1"), port));
  }
  template <typename T>
  void Send(T message) {
    Seal(message);
    asio::write(socket_, asio::buffer(&message, sizeof message));
  }
  template <typename T>
  T Receive() {
    T message;
    asio::read(socket_, asio::buffer(&message, sizeof message));
    return message;
  }
  Bytes Receive(size_t count) {
    Bytes bytes(count);
    asio::read(socket_, asio::buffer(bytes));
    return bytes;
  }
  ErrorCode Enter(const Plan& plan, size_t ticket) {
    Send(LaneHello{.pull_id = plan.pull_id, .ticket = plan.tickets[ticket]});
    const auto welcome = Receive<LaneWelcome>();
    REQUIRE(CheckWelcome(welcome).ok());
    return static_cast<ErrorCode>(welcome.code);
  }
  bool Closed() {
    asio::error_code error;
    char byte;
    asio::read(socket_, asio::buffer(&byte, 1), error);
    return error == asio::error::eof || error == asio::error::connection_reset;
  }
  tcp::socket& socket() { return socket_; }

 private:
  asio::io_context context_;
  tcp::socket socket_;
};

std::unique_ptr<LaneServer> StartLanes(Served& served) {
  auto server = LaneServer::Start({.address = {"127.0.0.1", 0}}, &served.pulls);
  REQUIRE(server.ok());
  return *std::move(server);
}

BlockRequest FullRequest(uint32_t first, uint32_t count, Version exact = 0) {
  return {.kind = static_cast<uint8_t>(RequestKind::kFull),
          .request_id = 7,
          .first_block = first,
          .block_count = count,
          .exact_version = exact};
}

TEST_CASE("A lane answers full requests with every block, each with its version and hash") {
  Served served;
  const auto server = StartLanes(served);
  const auto plan = served.pulls.Open(served.Wish());
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 0) == ErrorCode::kOk);
  lane.Send(FullRequest(3, 30));
  lane.Send(FullRequest(0, 1));
  for (BlockIndex block = 3; block < 33; ++block) {
    const auto frame = lane.Receive<FrameHeader>();
    REQUIRE(CheckFrame(frame, kBlock, kBlocks).ok());
    const Bytes bytes = lane.Receive(frame.payload_bytes);
    CHECK(CheckFramePayload(frame, bytes).ok());
    CHECK(frame.block == block);
    CHECK(frame.version == 1);
    CHECK(bytes == BlockOf(1, block));
  }
  const auto end = lane.Receive<FrameHeader>();
  CHECK(end.type == static_cast<uint8_t>(FrameType::kRequestEnd));
  CHECK(end.block == 30);
  CHECK(lane.Receive<FrameHeader>().block == 0);
}

TEST_CASE("A full pull moves on to the newer version when its own is gone; an exact request does not") {
  Served served;
  const auto server = StartLanes(served);
  const auto plan = served.pulls.Open(served.Wish());
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 0) == ErrorCode::kOk);
  served.Publish(2);
  served.blocks->oldest = 2;
  lane.Send(FullRequest(5, 1));
  const auto frame = lane.Receive<FrameHeader>();
  CHECK(frame.version == 2);
  CHECK(lane.Receive(frame.payload_bytes) == BlockOf(2, 5));
  lane.Receive<FrameHeader>();
  lane.Send(FullRequest(5, 1, 1));
  const auto refused = lane.Receive<FrameHeader>();
  CHECK(refused.type == static_cast<uint8_t>(FrameType::kError));
  CHECK(static_cast<ErrorCode>(refused.block) == ErrorCode::kState);
  lane.Receive(refused.payload_bytes);
  lane.Send(FullRequest(5, 1, 2));
  CHECK(lane.Receive<FrameHeader>().version == 2);
}

TEST_CASE("A delta request gets the entries of its range, byte for byte") {
  Served served;
  served.Publish(2);
  const auto server = StartLanes(served);
  const auto plan = served.pulls.Open(served.Wish(1));
  REQUIRE(plan->steps.size() == 1);
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 1) == ErrorCode::kOk);
  lane.Send(BlockRequest{.kind = static_cast<uint8_t>(RequestKind::kDelta),
                         .request_id = 9,
                         .first_block = 1,
                         .block_count = 5,
                         .payload_id = plan->steps[0].payload_id});
  for (const BlockIndex block : {2, 4}) {
    const auto frame = lane.Receive<FrameHeader>();
    REQUIRE(CheckFrame(frame, kBlock, kBlocks).ok());
    CHECK(frame.block == block);
    CHECK(frame.base_version == 1);
    CHECK(frame.version == 2);
    const PayloadEntry* entry = plan->steps[0].payload->Find(block);
    const ByteView expected = plan->steps[0].payload->data(*entry);
    CHECK(lane.Receive(frame.payload_bytes) == Bytes(expected.begin(), expected.end()));
  }
  CHECK(lane.Receive<FrameHeader>().block == 2);
  lane.Send(BlockRequest{.kind = static_cast<uint8_t>(RequestKind::kDelta), .block_count = 1, .payload_id = 12345});
  CHECK(static_cast<ErrorCode>(lane.Receive<FrameHeader>().block) == ErrorCode::kNotFound);
}

TEST_CASE("Strangers, garbage and malformed requests are shown out, and other lanes go on") {
  Served served;
  const auto server = StartLanes(served);
  auto plan = *served.pulls.Open(served.Wish());
  TestLane good(server->port());
  REQUIRE(good.Enter(plan, 0) == ErrorCode::kOk);

  TestLane stranger(server->port());
  plan.tickets[1] = RandomId<Ticket>();
  CHECK(stranger.Enter(plan, 1) == ErrorCode::kPermission);
  CHECK(stranger.Closed());

  TestLane garbage(server->port());
  asio::write(garbage.socket(), asio::buffer(std::string(200, 'G')));
  CHECK(garbage.Closed());

  const auto renewed = served.pulls.RenewTickets(plan.pull_id, 1);
  plan.tickets = *renewed;
  TestLane malformed(server->port());
  REQUIRE(malformed.Enter(plan, 0) == ErrorCode::kOk);
  malformed.Send(FullRequest(39, 2));
  CHECK(malformed.Closed());

  good.Send(FullRequest(0, 1));
  CHECK(good.Receive<FrameHeader>().block == 0);
}

TEST_CASE("A receiver that asks for much and reads nothing holds up neither the server nor its end") {
  Served served;
  auto server = StartLanes(served);
  const auto plan = served.pulls.Open(served.Wish());
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 0) == ErrorCode::kOk);
  for (int i = 0; i < 2000; ++i) lane.Send(FullRequest(0, kBlocks));
  TestLane other(server->port());
  REQUIRE(other.Enter(*plan, 1) == ErrorCode::kOk);
  other.Send(FullRequest(0, 1));
  CHECK(other.Receive<FrameHeader>().block == 0);
  server.reset();
}

}  // namespace
}  // namespace lockstep

// Lanes of pulls, over real TCP.
#include <thread>

#include "trainer_agent/serve/test_lane.h"

namespace lockstep::serve {
namespace {

using std::chrono::milliseconds;

TEST_CASE("A lane answers full requests with every block, each with its version and hash") {
  Served served;
  const auto server = StartLanes(served);
  const auto plan = served.pulls.Open(served.Request());
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 0) == ErrorCode::kOk);
  lane.Send(FullRequest(3, 30));
  lane.Send(FullRequest(0, 1));
  for (BlockIndex block = 3; block < 33; ++block) {
    const auto frame = lane.Receive<wire::FrameHeader>();
    REQUIRE(wire::CheckFrame(frame, kBlock, kBlocks).ok());
    const Bytes bytes = lane.Receive(frame.payload_bytes);
    CHECK(wire::CheckFramePayload(frame, bytes).ok());
    CHECK(frame.block == block);
    CHECK(frame.version == 1);
    CHECK(bytes == BlockOf(1, block));
  }
  const auto end = lane.Receive<wire::FrameHeader>();
  CHECK(end.type == static_cast<uint8_t>(wire::FrameType::kRequestEnd));
  CHECK(end.block == 30);
  CHECK(lane.Receive<wire::FrameHeader>().block == 0);
}

TEST_CASE("A full pull moves on to the newer version when its own is gone; an exact request does not") {
  Served served;
  const auto server = StartLanes(served);
  const auto plan = served.pulls.Open(served.Request());
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 0) == ErrorCode::kOk);
  served.Publish(2);
  run::Forget(*served.buffer, 1);
  lane.Send(FullRequest(5, 1));
  const auto frame = lane.Receive<wire::FrameHeader>();
  CHECK(frame.version == 2);
  CHECK(lane.Receive(frame.payload_bytes) == BlockOf(2, 5));
  lane.Receive<wire::FrameHeader>();
  lane.Send(FullRequest(5, 1, 1));
  const auto refused = lane.Receive<wire::FrameHeader>();
  CHECK(refused.type == static_cast<uint8_t>(wire::FrameType::kError));
  CHECK(static_cast<ErrorCode>(refused.block) == ErrorCode::kState);
  lane.Receive(refused.payload_bytes);
  lane.Send(FullRequest(5, 1, 2));
  CHECK(lane.Receive<wire::FrameHeader>().version == 2);
}

TEST_CASE("A delta request gets the entries of its range, byte for byte") {
  Served served;
  served.Publish(2);
  const auto server = StartLanes(served);
  const auto plan = served.pulls.Open(served.Request(1));
  REQUIRE(plan->steps.size() == 1);
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 1) == ErrorCode::kOk);
  lane.Send(wire::BlockRequest{.kind = static_cast<uint8_t>(wire::RequestKind::kDelta),
                               .request_id = 9,
                               .first_block = 1,
                               .block_count = 5,
                               .payload_id = plan->steps[0].payload_id});
  for (const BlockIndex block : {2, 4}) {
    const auto frame = lane.Receive<wire::FrameHeader>();
    REQUIRE(wire::CheckFrame(frame, kBlock, kBlocks).ok());
    CHECK(frame.block == block);
    CHECK(frame.base_version == 1);
    CHECK(frame.version == 2);
    const payload::PayloadEntry* entry = plan->steps[0].payload->Find(block);
    const ByteView expected = plan->steps[0].payload->data(*entry);
    CHECK(lane.Receive(frame.payload_bytes) == Bytes(expected.begin(), expected.end()));
  }
  CHECK(lane.Receive<wire::FrameHeader>().block == 2);
  lane.Send(wire::BlockRequest{
      .kind = static_cast<uint8_t>(wire::RequestKind::kDelta), .block_count = 1, .payload_id = 12345});
  CHECK(static_cast<ErrorCode>(lane.Receive<wire::FrameHeader>().block) == ErrorCode::kNotFound);
}

TEST_CASE("A lane is told to pull again when its delta was taken back, and full blocks are served on") {
  Served served(4096);
  served.Publish(2);
  const auto server = StartLanes(served);
  auto plan = *served.pulls.Open(served.Request(1));
  const auto full = served.pulls.Open(served.Request());
  TestLane lane(server->port());
  TestLane other(server->port());
  REQUIRE(lane.Enter(plan, 0) == ErrorCode::kOk);
  REQUIRE(other.Enter(*full, 0) == ErrorCode::kOk);
  served.Publish(3);
  served.run->deltas().TakeBack(run::DeltaStore::Clock::now() + run::DeltaStore::kMaxDroppedAge);
  lane.Send(wire::BlockRequest{.kind = static_cast<uint8_t>(wire::RequestKind::kDelta),
                               .block_count = 5,
                               .payload_id = plan.steps[0].payload_id});
  CHECK(lane.ReceiveError() == ErrorCode::kState);
  other.Send(FullRequest(0, 1));
  CHECK(other.Receive<wire::FrameHeader>().block == 0);
}

TEST_CASE("Strangers, garbage and malformed requests end their lanes, and other lanes are served on") {
  Served served;
  const auto server = StartLanes(served);
  auto plan = *served.pulls.Open(served.Request());
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
  CHECK(good.Receive<wire::FrameHeader>().block == 0);
}

TEST_CASE("A receiver that asks for much and reads nothing holds up neither the server nor its end") {
  Served served;
  auto server = StartLanes(served);
  const auto plan = served.pulls.Open(served.Request());
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 0) == ErrorCode::kOk);
  for (int i = 0; i < 2000; ++i) lane.Send(FullRequest(0, kBlocks));
  TestLane other(server->port());
  REQUIRE(other.Enter(*plan, 1) == ErrorCode::kOk);
  other.Send(FullRequest(0, 1));
  CHECK(other.Receive<wire::FrameHeader>().block == 0);
  server.reset();
}

TEST_CASE("Blocks that a full socket cuts come whole, although their memory was lent for a moment only") {
  Served served;
  const auto server = StartLanes(served);
  const auto plan = served.pulls.Open(served.Request());
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 0) == ErrorCode::kOk);
  constexpr int kRequests = 120;  // 19 MB: more than sockets hold
  for (int i = 0; i < kRequests; ++i) lane.Send(FullRequest(0, kBlocks));
  std::map<Version, int> blocks;
  for (int i = 0; i < kRequests; ++i) {
    for (BlockIndex block = 0; block < kBlocks; ++block) {
      const auto [frame, bytes] = lane.ReceiveBlock();
      if (i == 0 && block == 0) {
        std::this_thread::sleep_for(milliseconds(50));  // the socket fills
        served.Publish(2);
        run::Forget(*served.buffer, 1);
      }
      if (bytes != BlockOf(frame.version, block)) FAIL("block " << block << " of request " << i);
      ++blocks[frame.version];
    }
    REQUIRE(lane.Receive<wire::FrameHeader>().block == kBlocks);
  }
  CHECK(blocks[1] > 0);
  CHECK(blocks[2] > 0);
  CHECK(blocks[1] + blocks[2] == kRequests * static_cast<int>(kBlocks));
}

TEST_CASE("Requests that come along with the hello are answered, or their refusal arrives all the same") {
  Served served;
  const auto server = StartLanes(served);
  auto plan = *served.pulls.Open(served.Request());
  const auto enter = [&](TestLane& lane) {
    wire::LaneHello hello{.pull_id = plan.pull_id, .ticket = plan.tickets[0]};
    wire::BlockRequest request = FullRequest(4, 1);
    wire::Seal(hello);
    wire::Seal(request);
    asio::write(lane.socket(), std::array{asio::buffer(&hello, sizeof hello), asio::buffer(&request, sizeof request)});
    return static_cast<ErrorCode>(lane.Receive<wire::LaneWelcome>().code);
  };
  TestLane lane(server->port());
  REQUIRE(enter(lane) == ErrorCode::kOk);
  CHECK(lane.ReceiveBlock().second == BlockOf(1, 4));
  TestLane refused(server->port());
  CHECK(enter(refused) == ErrorCode::kPermission);
  CHECK(refused.Closed());
}

// Seconds until `lanes` have got all blocks `times` times each.
double SecondsOf(std::vector<std::unique_ptr<TestLane>>& lanes, int times) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) {
    for (const auto& lane : lanes) lane->Send(FullRequest(0, kBlocks));
  }
  const uint64_t bytes = times * (kBlocks * (kBlock + sizeof(wire::FrameHeader)) + sizeof(wire::FrameHeader));
  for (const auto& lane : lanes) lane->Receive(bytes);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_CASE("Rate limits hold for all lanes together, and for those of one receiver") {
  Served served;
  constexpr uint64_t kRate = 4 << 20;
  const bool shared = GENERATE(true, false);
  LaneServerOptions options;
  (shared ? options.bytes_per_s : options.receiver_bytes_per_s) = kRate;
  const auto server = StartLanes(served, options);
  std::vector<std::unique_ptr<TestLane>> lanes;
  for (const char* receiver : {"one", "two"}) {
    PullRequest request = served.Request();
    request.receiver = receiver;
    lanes.push_back(std::make_unique<TestLane>(server->port()));
    REQUIRE(lanes.back()->Enter(*served.pulls.Open(request), 0) == ErrorCode::kOk);
  }
  constexpr int kTimes = 10;
  const double expected = (shared ? 2.0 : 1.0) * kTimes * kBlocks * kBlock / kRate;  // 0.4 s each
  const double seconds = SecondsOf(lanes, kTimes);
  CHECK(seconds > 0.7 * expected);
  CHECK(seconds < 30 * expected);  // on a loaded machine; lane_limits_test.cc has the exact figures
}

TEST_CASE("A lane that waits for its turn holds no slot") {
  Served served;
  const auto server = StartLanes(served, {.receiver_bytes_per_s = 1 << 10});
  const auto plan = served.pulls.Open(served.Request());
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 0) == ErrorCode::kOk);
  for (int i = 0; i < 3; ++i) lane.Send(FullRequest(0, kBlocks));  // minutes, at this rate
  CHECK(lane.ReceiveBlock().first.version == 1);
  for (const Version version : {2, 3}) served.Publish(version);  // which waits for readers of version 1
}

}  // namespace
}  // namespace lockstep::serve

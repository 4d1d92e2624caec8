// Lanes of standing pulls, over real TCP.
#include <set>
#include <thread>

#include "common/base/status_testing.h"
#include "trainer_agent/serve/test_lane.h"

namespace lockstep::serve {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<const payload::DeltaBlock> BlockTo(Version version, BlockIndex index) {
  auto block = std::make_shared<payload::DeltaBlock>(
      payload::DeltaBlock{.block = index, .codec = payload::Codec::kSparse, .changes = 1});
  block->data = Bytes(3 + index, static_cast<std::byte>(version));
  block->data_hash = Hash64(block->data);
  block->target_hash = model::BlockHash(BlockOf(version, index));
  return block;
}

wire::BlockRequest ShareRequest(uint32_t share, uint32_t shares, Version base) {
  return {.kind = static_cast<uint8_t>(wire::RequestKind::kStream),
          .request_id = 5,
          .first_block = share,
          .block_count = shares,
          .exact_version = base};
}

// A standing pull with two lanes.
struct Following {
  Served served;
  std::unique_ptr<LaneServer> server = StartLanes(served, {.timeouts = {.idle = milliseconds(30)}});
  PullPlan plan = *served.pulls.Open(served.StandingRequest(2));
  std::array<TestLane, 2> lanes{TestLane(server->port()), TestLane(server->port())};
  run::DeltaFeed& feed = served.run->feed();

  Following() {
    feed.SetNewest(1);
    for (size_t i = 0; i < 2; ++i) REQUIRE(lanes[i].Enter(plan, i) == ErrorCode::kOk);
  }
  void Ask(Version base) {
    for (uint32_t share = 0; share < 2; ++share) lanes[share].Send(ShareRequest(share, 2, base));
  }
};

TEST_CASE("Each lane brings its share of a delta while it is made, and the end names the version") {
  Following following;
  for (Version base = 1; base <= 2; ++base) {
    following.Ask(base);
    std::this_thread::sleep_for(milliseconds(60));  // longer than a pull's lanes may be idle
    const auto delta = following.feed.Begin(base, base + 1);
    for (BlockIndex index = 0; index < kBlocks; ++index) delta->Add(BlockTo(base + 1, index));
    // Enough was added to wake them: blocks come before the delta is sealed.
    for (BlockIndex index = 0; index < 20; ++index) {
      const auto [frame, payload] = following.lanes[index % 2].ReceiveBlock();
      CHECK(frame.block == index);
      CHECK(frame.version == base + 1);
      CHECK(frame.base_version == base);
      CHECK(frame.payload_id == 0);
      CHECK(payload == BlockTo(base + 1, index)->data);
    }
    delta->Seal();
    following.feed.SetNewest(base + 1);
    for (uint32_t share = 0; share < 2; ++share) {
      for (BlockIndex index = 20 + share; index < kBlocks; index += 2) {
        CHECK(following.lanes[share].ReceiveBlock().first.block == index);
      }
      const auto end = following.lanes[share].Receive<wire::FrameHeader>();
      CHECK(end.type == static_cast<uint8_t>(wire::FrameType::kRequestEnd));
      CHECK(end.block == kBlocks / 2);
      CHECK(end.version == base + 1);
      CHECK(end.request_id == 5);
    }
  }
}

TEST_CASE("A version that is aborted, and a base that is not the newest, end with an error, and the lane stays open") {
  Following following;
  following.Ask(1);
  const auto delta = following.feed.Begin(1, 2);
  for (BlockIndex index = 0; index < kBlocks; ++index) delta->Add(BlockTo(2, index));
  for (TestLane& lane : following.lanes) lane.ReceiveBlock();
  delta->Abort({ErrorCode::kAborted, "the trainer died"});
  following.feed.SetNewest(1);
  for (TestLane& lane : following.lanes) CHECK(lane.ReceiveError() == ErrorCode::kAborted);
  following.Ask(7);
  for (TestLane& lane : following.lanes) CHECK(lane.ReceiveError() == ErrorCode::kState);
  following.Ask(1);
  following.feed.Begin(1, 3)->Seal();
  for (TestLane& lane : following.lanes) CHECK(lane.Receive<wire::FrameHeader>().version == 3);
}

TEST_CASE("A follower that leaves while it waits makes room, and wakes that come later do no harm") {
  Following following;
  following.Ask(1);
  std::this_thread::sleep_for(milliseconds(20));
  following.lanes[0].socket().close();
  std::vector<Pull::LaneLease> places;
  const auto free_places = [&] {
    places.clear();
    while (true) {
      auto tickets = following.served.pulls.RenewTickets(following.plan.pull_id, 1);
      auto place = following.served.pulls.Admit(following.plan.pull_id, tickets->at(0));
      if (!place.ok()) return places.size();
      places.push_back(*std::move(place));
    }
  };
  CHECK(Eventually([&] { return free_places() == 5; }));
  const auto delta = following.feed.Begin(1, 2);
  delta->Add(BlockTo(2, 1));
  delta->Seal();
  CHECK(following.lanes[1].ReceiveBlock().first.block == 1);
}

TEST_CASE("A closed standing pull lets no lane in, and counts until its lanes have ended") {
  Following following;
  PullTable& pulls = following.served.pulls;
  const auto open = [&] { return pulls.Open(following.served.StandingRequest(1)); };
  following.Ask(1);
  pulls.Close(following.plan.pull_id, {}, "ok");
  CHECK_THAT(pulls.RenewTickets(following.plan.pull_id, 1),
             FailsWith(ErrorCode::kNotFound, "is not open; it may have expired"));
  CHECK(open().ok());
  CHECK(open().ok());
  CHECK_THAT(open(), FailsWith(ErrorCode::kResourceExhausted, "standing pulls are open, the limit"));
  following.feed.Begin(1, 2);  // wakes them, and they end
  for (TestLane& lane : following.lanes) CHECK(lane.Closed());
  CHECK(Eventually([&] { return open().ok(); }));
  CHECK_THAT(open(), FailsWith(ErrorCode::kResourceExhausted,
                               "standing pulls are open, the limit"));  // the place was taken again
}

TEST_CASE("A server that ends while its lanes wait is not called when the delta comes") {
  Following following;
  following.Ask(1);
  std::this_thread::sleep_for(milliseconds(20));
  following.server.reset();
  const auto delta = following.feed.Begin(1, 2);
  delta->Add(BlockTo(2, 1));
  delta->Seal();
  CHECK(following.lanes[0].Closed());
}

}  // namespace
}  // namespace lockstep::serve

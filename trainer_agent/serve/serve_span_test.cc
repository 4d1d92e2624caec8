// What lanes leave in the timeline.
#include <thread>

#include "trainer_agent/serve/test_lane.h"

namespace lockstep::serve {
namespace {

using std::chrono::milliseconds;

// The spans, once there are `count`.
std::vector<telemetry::Span> AwaitSpans(const telemetry::Timeline& timeline, size_t count) {
  CHECK(Eventually([&] { return timeline.Select("", 0).size() >= count; }));
  auto spans = timeline.Select("actor", 0);
  REQUIRE(spans.size() == count);
  return spans;
}

std::shared_ptr<const payload::DeltaBlock> SomeBlock() {
  auto block = std::make_shared<payload::DeltaBlock>(
      payload::DeltaBlock{.block = 0, .codec = payload::Codec::kSparse, .changes = 1});
  block->data = Bytes(100, std::byte{1});
  block->data_hash = Hash64(block->data);
  return block;
}

TEST_CASE("Each lane of a pull leaves one span, from its first request to its last byte, and an idle one none") {
  telemetry::Timeline timeline;
  Served served;
  const auto server = StartLanes(served, {.timeline = &timeline});
  PullRequest request = served.Request();
  request.lanes = 3;
  const auto plan = served.pulls.Open(request);
  int64_t served_unix_ns = 0;
  {
    TestLane first(server->port()), second(server->port()), idle(server->port());
    REQUIRE(first.Enter(*plan, 0) == ErrorCode::kOk);
    REQUIRE(second.Enter(*plan, 1) == ErrorCode::kOk);
    REQUIRE(idle.Enter(*plan, 2) == ErrorCode::kOk);
    for (int request = 0; request < 2; ++request) {
      std::this_thread::sleep_for(milliseconds(20));
      first.Send(FullRequest(0, 4));
      for (int block = 0; block < 4; ++block) first.ReceiveBlock();
      first.Receive<wire::FrameHeader>();
    }
    second.Send(FullRequest(0, 1));
    second.ReceiveBlock();
    served_unix_ns = telemetry::UnixNanos();
    std::this_thread::sleep_for(milliseconds(800));  // not served then
  }
  const auto spans = AwaitSpans(timeline, 2);
  for (const telemetry::Span& span : spans) {
    CHECK(span.name == "serve");
    CHECK(span.run == served.run->run());
    CHECK(span.version == 1);
    CHECK(span.transfer == plan->pull_id);
    CHECK(span.bytes >= (span.lane == 0 ? 8 : 1) * kBlock);
    CHECK(span.bytes < (span.lane == 0 ? 9 : 2) * kBlock);
    CHECK(span.end_unix_ns - span.begin_unix_ns >= (span.lane == 0 ? 20'000'000 : 0));
    CHECK(span.end_unix_ns < served_unix_ns + 400'000'000);
  }
  CHECK(spans[0].lane + spans[1].lane == 1);
}

TEST_CASE("A standing lane leaves a span for every delta it served, and none for one that was aborted") {
  telemetry::Timeline timeline;
  Served served;
  const auto server = StartLanes(served, {.timeline = &timeline});
  run::DeltaFeed& feed = served.run->feed();
  feed.SetNewest(1);
  const auto plan = served.pulls.Open(served.StandingRequest(1));
  TestLane lane(server->port());
  REQUIRE(lane.Enter(*plan, 0) == ErrorCode::kOk);
  const wire::BlockRequest ask{.kind = static_cast<uint8_t>(wire::RequestKind::kStream),
                               .request_id = 5,
                               .first_block = 0,
                               .block_count = 1,
                               .exact_version = 1};
  lane.Send(ask);
  const auto aborted = feed.Begin(1, 2);
  for (BlockIndex i = 0; i < kBlocks; ++i) aborted->Add(SomeBlock());
  lane.Receive<wire::FrameHeader>();  // it is being served
  lane.Receive(100);
  aborted->Abort({ErrorCode::kAborted, "on purpose"});
  feed.SetNewest(1);
  CHECK(lane.ReceiveError() == ErrorCode::kAborted);
  const int64_t asked_again_unix_ns = telemetry::UnixNanos();
  lane.Send(ask);
  const auto delta = feed.Begin(1, 3);
  delta->Add(SomeBlock());
  delta->Seal();
  CHECK(lane.Receive<wire::FrameHeader>().payload_bytes == 100);
  lane.Receive(100);
  lane.Receive<wire::FrameHeader>();
  const telemetry::Span span = AwaitSpans(timeline, 1).at(0);
  CHECK(span.version == 3);
  CHECK(span.transfer == plan->pull_id);
  CHECK(span.bytes >= 100);
  CHECK(span.bytes < 400);
  CHECK(span.begin_unix_ns >= asked_again_unix_ns);
}

}  // namespace
}  // namespace lockstep::serve

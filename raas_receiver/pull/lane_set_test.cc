// What lanes do when their peer fails or misbehaves; pulls of a real agent: origin_test.
#include "raas_receiver/pull/lane_set.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <thread>

#include "common/base/status_testing.h"
#include "raas_receiver/pull/request_pace.h"
#include "raas_receiver/pull/test_lane_server.h"

namespace lockstep::pull {
namespace {

using std::chrono::milliseconds;

// Full blocks, straight into memory like a replica's.
class MemorySink : public BlockSink {
 public:
  explicit MemorySink(const model::ModelLayout& layout)
      : layout_(layout), data(layout.data_bytes()), versions(layout.block_count()) {}
  std::span<std::byte> Destination(const wire::FrameHeader& frame) override {
    const ByteRange range = layout_.block_range(frame.block);
    return std::span(data).subspan(range.offset, range.bytes);
  }
  Status Put(const wire::FrameHeader& frame, ByteView) override {
    if (std::exchange(versions[frame.block], frame.version) != 0) ++repeated;
    return OkStatus();
  }

 private:
  const model::ModelLayout& layout_;

 public:
  Bytes data;
  std::vector<Version> versions;
  std::atomic<int> repeated = 0;
};

class EntrySink : public DeltaSink {
 public:
  Status PutEntry(uint64_t, payload::DeltaBlock entry) override {
    std::lock_guard lock(mutex_);
    blocks.push_back(std::move(entry));
    return OkStatus();
  }
  Status PutPayload(uint64_t, std::shared_ptr<const payload::Payload>) override { return OkStatus(); }

  std::vector<payload::DeltaBlock> blocks;

 private:
  std::mutex mutex_;
};

// Shares of a streaming delta.
class StreamSink : public BlockSink {
 public:
  std::span<std::byte> Destination(const wire::FrameHeader&) override { return {}; }
  Status Put(const wire::FrameHeader& frame, ByteView payload) override {
    std::lock_guard lock(mutex_);
    blocks.push_back(EntryOf(frame, Bytes(payload.begin(), payload.end())));
    return OkStatus();
  }
  Status EndShare(Version) override {
    ++ended;
    return OkStatus();
  }

  std::vector<payload::DeltaBlock> blocks;
  std::atomic<int> ended = 0;

 private:
  std::mutex mutex_;
};

struct Fixture {
  replica::TestModel model{3};
  net::IoThreads io{2, [](std::string_view what) { throw std::logic_error(std::string(what)); }};
  TestLaneServer server{model};
  // A machine that is busy keeps lanes waiting too: silence is a fault only where a test is about it.
  LaneOptions options{.peer = {.agent = {"127.0.0.1", server.port()},
                               .pull_id = 42,
                               .layout = model.layout(),
                               .tickets = {RandomId<Ticket>(), RandomId<Ticket>(), RandomId<Ticket>()},
                               .connect_timeout = std::chrono::minutes(1)},
                      .silence_timeout = std::chrono::minutes(5),
                      .first_backoff = milliseconds(2),
                      .attempts = 4};
  RenewTickets renew = [this](size_t lanes) -> Result<std::vector<Ticket>> {
    renewed += lanes;
    return std::vector<Ticket>(lanes, RandomId<Ticket>());
  };
  size_t renewed = 0;

  Fixture() {
    model.Advance();
    model.Advance();
    server.payloads[1] = model.DeltaBlocks(1, 2);
  }

  // Silence is noticed soon, and not held against a lane that brings blocks in between.
  void NoticeSilence() {
    options.silence_timeout = milliseconds(300);
    options.attempts = 100;
  }
  void WaitForConnections(int count) const {
    while (server.connections() < count) std::this_thread::sleep_for(milliseconds(1));
  }

  std::vector<BlockRun> FullRuns(Version version = 1) const {
    return SplitRun({.kind = wire::RequestKind::kFull, .version = version, .count = model.layout()->block_count()}, 3);
  }
  std::vector<BlockRun> DeltaRuns() const {
    return SplitRun({.kind = wire::RequestKind::kDelta,
                     .payload_id = 1,
                     .base = 1,
                     .version = 2,
                     .count = model.layout()->block_count()},
                    4);
  }
  void CheckDelta(const std::vector<payload::DeltaBlock>& blocks) {
    const payload::PayloadIdentity identity{model.run(), 1, 2, model.manifest(1).digest, model.manifest(2).digest, 0};
    const auto payload = payload::Payload::Assemble(*model.layout(), identity, blocks);
    REQUIRE(payload.ok());
    const auto expected = model.Delta(1, 2);
    const ByteView got = (*payload)->bytes();
    CHECK(std::equal(got.begin(), got.end(), expected->bytes().begin(), expected->bytes().end()));
  }
};

constexpr Fault kFaults[] = {Fault::kRefuseTicket,   Fault::kForeignWelcome, Fault::kCloseBeforeFrame,
                             Fault::kCloseInPayload, Fault::kCorruptHeader,  Fault::kCorruptPayload,
                             Fault::kForeignBlock,   Fault::kBlockTwice,     Fault::kOldVersion,
                             Fault::kOtherPayload,   Fault::kWrongEnd,       Fault::kTooLarge,
                             Fault::kStall};

}  // namespace

// What becomes of the delta itself: subscription_test, which ThreadSanitizer does not run.
TEST_CASE("Lanes of a standing pull bring their shares, wait for the next delta, and end at a stop") {
  Fixture fixture;
  fixture.options.standing = true;
  fixture.options.attempts = 1;
  fixture.server.begun = [](Version base) { return base == 1; };
  fixture.model.Advance();
  fixture.server.payloads[2] = fixture.model.DeltaBlocks(2, 3);  // of which lanes hear when the server goes
  StreamSink sink;                                               // lanes use it until they have left
  LaneSet lanes(fixture.io, fixture.options, nullptr);
  lanes.Post(RunsOf(StreamRequest{1}, 3), sink);
  REQUIRE(lanes.Wait(std::chrono::minutes(1)).ok());
  CHECK(sink.ended == 3);
  fixture.CheckDelta(sink.blocks);
  CHECK(lanes.lost().ok());
  lanes.Post(RunsOf(StreamRequest{2}, 3), sink);
  CHECK(lanes.Wait(milliseconds(20)).code() == ErrorCode::kDeadline);
  lanes.Cancel();
  CHECK(lanes.Wait().code() == ErrorCode::kCancelled);
}

TEST_CASE("A lane of a standing pull that is lost ends the fetch, and says why") {
  Fixture fixture;
  const Fault fault = GENERATE(Fault::kCloseInPayload, Fault::kCorruptPayload, Fault::kBlockTwice);
  INFO("fault " << static_cast<int>(fault));
  fixture.options.standing = true;
  fixture.options.attempts = 1;
  fixture.server.at_frame = 1;
  fixture.server.fault_of = [=](int connection) { return connection == 0 ? fault : Fault::kNone; };
  StreamSink sink;  // lanes use it until they have left
  LaneSet lanes(fixture.io, fixture.options, nullptr);
  lanes.Post(RunsOf(StreamRequest{1}, 3), sink);
  CHECK(lanes.Wait(std::chrono::minutes(1)).code() == CodeOf(fault));
  CHECK(lanes.lost().code() == CodeOf(fault));
}

TEST_CASE("Lanes stay open from one fetch to the next") {
  Fixture fixture;
  LaneSet lanes(fixture.io, fixture.options, fixture.renew);
  MemorySink full(*fixture.model.layout());
  EntrySink delta;
  REQUIRE(lanes.Fetch(fixture.FullRuns(), full).ok());
  REQUIRE(lanes.Fetch(fixture.DeltaRuns(), delta).ok());
  fixture.CheckDelta(delta.blocks);
  fixture.WaitForConnections(3);  // the last one may still connect when the others have brought everything
  CHECK(fixture.server.connections() == 3);
}

TEST_CASE("A lane that misbehaves once is opened again, and what had come is not asked for twice") {
  Fixture fixture;
  const Fault fault = GENERATE(from_range(std::begin(kFaults), std::end(kFaults)));
  INFO("fault " << static_cast<int>(fault));
  fixture.server.fault_of = [=](int connection) { return connection < 2 ? fault : Fault::kNone; };
  if (fault == Fault::kStall) fixture.NoticeSilence();
  fixture.options.peer.tickets.resize(1);  // no other lane that could take the work over
  LaneSet lanes(fixture.io, fixture.options, fixture.renew);
  MemorySink full(*fixture.model.layout());
  REQUIRE(lanes.Fetch(fixture.FullRuns(), full).ok());
  CHECK(full.data == fixture.model.data(1));
  CHECK(full.repeated == 0);
  CHECK(lanes.counters().retries >= 1);
  CHECK(fixture.renewed == lanes.counters().retries);
}

TEST_CASE("A delta comes whole over lanes that misbehave") {
  Fixture fixture;
  const Fault fault = GENERATE(from_range(std::begin(kFaults), std::end(kFaults)));
  INFO("fault " << static_cast<int>(fault));
  if (fault == Fault::kStall) fixture.NoticeSilence();
  fixture.server.at_frame = 2;
  fixture.server.fault_of = [=](int connection) { return connection < 2 ? fault : Fault::kNone; };
  LaneSet lanes(fixture.io, fixture.options, fixture.renew);
  EntrySink sink;
  REQUIRE(lanes.Fetch(fixture.DeltaRuns(), sink).ok());
  fixture.CheckDelta(sink.blocks);
}

TEST_CASE("A peer that never behaves fails the pull with what it did, naming peer and lane") {
  Fixture fixture;
  const Fault fault = GENERATE(from_range(std::begin(kFaults), std::end(kFaults)));
  INFO("fault " << static_cast<int>(fault));
  fixture.server.fault_of = [=](int) { return fault; };
  fixture.server.at_frame = 1;
  if (fault == Fault::kStall) fixture.options.silence_timeout = milliseconds(50);
  LaneSet lanes(fixture.io, fixture.options, fixture.renew);
  MemorySink sink(*fixture.model.layout());
  const Status status = lanes.Fetch(fixture.FullRuns(), sink);
  INFO(status.ToString());
  if (fault == Fault::kWrongEnd || fault == Fault::kBlockTwice) {
    CHECK((status.ok() ||
           status.code() == ErrorCode::kProtocol));  // blocks come all the same: every attempt makes progress
    return;
  }
  CHECK_THAT(status, FailsWith(CodeOf(fault), "lane ", "127.0.0.1:" + std::to_string(fixture.server.port())));
  if (fault == Fault::kForeignBlock || fault == Fault::kOldVersion)
    CHECK_THAT(status.message(), Catch::Contains("block "));
}

TEST_CASE("A refused request fails the fetch with the agent's words, and the lanes live on") {
  Fixture fixture;
  fixture.server.refuse = [](const wire::BlockRequest& request) {
    return request.exact_version == 0 ? OkStatus() : Status(ErrorCode::kNotFound, "version 1 is gone");
  };
  LaneSet lanes(fixture.io, fixture.options, fixture.renew);
  MemorySink sink(*fixture.model.layout());
  BlockRun exact = fixture.FullRuns()[1];
  exact.exact = true;
  const Status status = lanes.Fetch({exact}, sink);
  CHECK_THAT(status, FailsWith(ErrorCode::kNotFound, "version 1 is gone"));
  REQUIRE(lanes.Fetch(fixture.FullRuns(), sink).ok());
  CHECK(sink.data == fixture.model.data(1));
}

TEST_CASE("On a near link lanes beyond the first few stand by, and come in when one is abandoned") {
  Fixture fixture;
  for (int i = 0; i < 5; ++i) fixture.options.peer.tickets.push_back(RandomId<Ticket>());
  SECTION("all is well") {
    LaneSet lanes(fixture.io, fixture.options, fixture.renew);
    MemorySink sink(*fixture.model.layout());
    REQUIRE(lanes.Fetch(fixture.FullRuns(), sink).ok());
    CHECK(sink.data == fixture.model.data(1));
    // The last of them may still connect when the first have brought everything; a spare never does.
    fixture.WaitForConnections(static_cast<int>(kNearLanes));
    std::this_thread::sleep_for(milliseconds(50));
    CHECK(fixture.server.connections() == static_cast<int>(kNearLanes));
  }
  SECTION("the first ones are refused for good") {
    fixture.server.fault_of = [](int connection) {
      return connection < static_cast<int>(kNearLanes) ? Fault::kRefuseTicket : Fault::kNone;
    };
    fixture.options.attempts = 1;
    LaneSet lanes(fixture.io, fixture.options, fixture.renew);
    MemorySink sink(*fixture.model.layout());
    REQUIRE(lanes.Fetch(fixture.FullRuns(), sink).ok());
    CHECK(sink.data == fixture.model.data(1));
    CHECK(fixture.server.connections() > static_cast<int>(kNearLanes));
  }
}

TEST_CASE("The rate at which blocks came is known once there were enough of them") {
  Fixture fixture;
  LaneSet lanes(fixture.io, fixture.options, fixture.renew);
  LaneSet::Clock::time_point now{std::chrono::hours(1)};
  for (int i = 0; i < 20; ++i) {
    lanes.Count(100'000, now += milliseconds(1));
    if (i == 5) CHECK(lanes.counters().bytes_per_s == 0);
  }
  CHECK(lanes.counters().payload_bytes == 2'000'000);
  CHECK(lanes.counters().bytes_per_s == 100'000'000);
}

TEST_CASE("Cancelling ends a stalled fetch at once") {
  Fixture fixture;
  fixture.server.fault_of = [](int) { return Fault::kStall; };
  fixture.options.silence_timeout = std::chrono::minutes(5);
  LaneSet lanes(fixture.io, fixture.options, fixture.renew);
  MemorySink sink(*fixture.model.layout());
  std::thread canceller([&] {
    std::this_thread::sleep_for(milliseconds(50));
    lanes.Cancel();
  });
  CHECK(lanes.Fetch(fixture.FullRuns(), sink).code() == ErrorCode::kCancelled);
  canceller.join();
  CHECK(lanes.Fetch(fixture.FullRuns(), sink).code() == ErrorCode::kCancelled);
}

TEST_CASE("An agent that is not there fails the pull after some attempts") {
  Fixture fixture;
  fixture.options.peer.agent.port = 1;
  LaneSet lanes(fixture.io, fixture.options, fixture.renew);
  MemorySink sink(*fixture.model.layout());
  CHECK(lanes.Fetch(fixture.FullRuns(), sink).code() == ErrorCode::kUnavailable);
  CHECK(lanes.counters().retries == 3 * 3);
}

TEST_CASE("A pull that the agent has forgotten ends without more attempts") {
  Fixture fixture;
  fixture.server.fault_of = [](int) { return Fault::kRefuseTicket; };
  fixture.renew = [](size_t) { return Status(ErrorCode::kNotFound, "pull 42 has expired"); };
  LaneSet lanes(fixture.io, fixture.options, fixture.renew);
  MemorySink sink(*fixture.model.layout());
  const Status status = lanes.Fetch(fixture.FullRuns(), sink);
  CHECK_THAT(status, FailsWith(ErrorCode::kNotFound, "pull 42 has expired"));
  CHECK(fixture.server.connections() == 3);
}

}  // namespace lockstep::pull

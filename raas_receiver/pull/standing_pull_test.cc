#include "raas_receiver/pull/standing_pull.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "common/base/status_testing.h"
#include "raas_receiver/pull/test_lane_server.h"

namespace lockstep::pull {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kPatience = std::chrono::minutes(1);  // more than a busy machine needs

struct Fixture {
  replica::TestModel model{3};
  net::IoThreads io{2, [](std::string_view what) { throw std::logic_error(std::string(what)); }};
  TestLaneServer server{model};
  LanePeer peer{.agent = {"127.0.0.1", server.port()},
                .pull_id = 42,
                .layout = model.layout(),
                .tickets = {RandomId<Ticket>(), RandomId<Ticket>(), RandomId<Ticket>()},
                .connect_timeout = std::chrono::minutes(1)};

  Fixture() {
    for (Version version = 1; version < 5; ++version) {
      model.Advance();
      if (version > 1) server.payloads[version - 1] = model.DeltaBlocks(version - 1, version);
    }
  }
  // The blocks make the delta from `base` on, bit for bit.
  void Check(const Result<StandingPull::Delta>& delta, Version base) const {
    INFO(delta.status().ToString());
    REQUIRE(delta.ok());
    CHECK(delta->base == base);
    CHECK(delta->target == base + 1);
    const payload::PayloadIdentity identity{
        model.run(), base, base + 1, model.manifest(base).digest, model.manifest(base + 1).digest, 0};
    const auto payload = payload::Payload::Assemble(*model.layout(), identity, delta->blocks);
    REQUIRE(payload.ok());
    const ByteView got = (*payload)->bytes();
    const auto expected = model.Delta(base, base + 1);
    CHECK(std::equal(got.begin(), got.end(), expected->bytes().begin(), expected->bytes().end()));
  }
};

}  // namespace

TEST_CASE("Lanes bring one delta after the other, each whole and bit for bit") {
  Fixture fixture;
  StandingPull lanes(fixture.io, fixture.peer);
  for (Version base = 1; base <= 3; ++base) {
    lanes.Ask(base);
    const auto delta = lanes.Take(kPatience);
    fixture.Check(delta, base);
    CHECK(delta->bytes > 0);
  }
  CHECK(lanes.lost().ok());
  CHECK(fixture.server.connections() == 3);
}

TEST_CASE("A delta that has not begun is waited for only as long as the caller likes, and comes later all the same") {
  Fixture fixture;
  std::atomic<bool> begun = false;
  fixture.server.begun = [&](Version) { return begun.load(); };
  StandingPull lanes(fixture.io, fixture.peer);
  lanes.Ask(1);
  CHECK(lanes.Take(milliseconds(20)).status().code() == ErrorCode::kDeadline);
  std::this_thread::sleep_for(milliseconds(100));
  begun = true;
  fixture.Check(lanes.Take(kPatience), 1);
}

TEST_CASE("That a version was aborted is an answer, and the lanes can be asked again") {
  Fixture fixture;
  std::atomic<bool> aborted = true;
  fixture.server.refuse = [&](const wire::BlockRequest&) {
    return aborted ? Status(ErrorCode::kAborted, "rank 2 vanished") : OkStatus();
  };
  StandingPull lanes(fixture.io, fixture.peer);
  lanes.Ask(1);
  const Status refused = lanes.Take(kPatience).status();
  CHECK_THAT(refused, FailsWith(ErrorCode::kAborted, "rank 2 vanished"));
  aborted = false;
  lanes.Ask(1);
  fixture.Check(lanes.Take(kPatience), 1);
}

TEST_CASE("Whatever a lane does wrong ends the pull, and nothing of it is believed") {
  const Fault fault =
      GENERATE(Fault::kRefuseTicket, Fault::kForeignWelcome, Fault::kCloseBeforeFrame, Fault::kCloseInPayload,
               Fault::kCorruptHeader, Fault::kCorruptPayload, Fault::kForeignBlock, Fault::kBlockTwice,
               Fault::kOldVersion, Fault::kOtherPayload, Fault::kWrongEnd, Fault::kTooLarge);
  Fixture fixture;
  fixture.server.at_frame = 1;
  fixture.server.fault_of = [&](int connection) { return connection == 1 ? fault : Fault::kNone; };
  StandingPull lanes(fixture.io, fixture.peer);
  lanes.Ask(1);
  const auto delta = lanes.Take(kPatience);
  CAPTURE(static_cast<int>(fault));
  CHECK_THAT(delta, FailsWith(CodeOf(fault), "standing lane "));
  CHECK_THAT(lanes.lost(), FailsWith(CodeOf(fault), "standing lane "));
}

TEST_CASE("A lane that stalls in the middle is waited for only as long as the caller likes") {
  Fixture fixture;
  fixture.server.at_frame = 1;
  fixture.server.fault_of = [](int connection) { return connection == 1 ? Fault::kStall : Fault::kNone; };
  StandingPull lanes(fixture.io, fixture.peer);
  lanes.Ask(1);
  CHECK(lanes.Take(milliseconds(200)).status().code() == ErrorCode::kDeadline);
}

TEST_CASE("Where no agent listens, that is the answer, and it is not waited for") {
  Fixture fixture;
  fixture.peer.agent.port = 1;
  StandingPull lanes(fixture.io, fixture.peer);
  lanes.Ask(1);
  CHECK(lanes.Take(kPatience).status().code() == ErrorCode::kUnavailable);
}

TEST_CASE("A cancelled Take comes back at once") {
  Fixture fixture;
  fixture.server.begun = [](Version) { return false; };
  StandingPull lanes(fixture.io, fixture.peer);
  lanes.Ask(1);
  std::thread canceller([&] {
    std::this_thread::sleep_for(milliseconds(30));
    lanes.Cancel();
  });
  CHECK(lanes.Take(std::chrono::minutes(1)).status().code() == ErrorCode::kCancelled);
  canceller.join();
}

}  // namespace lockstep::pull

// What the other end of a subscription may do that no real agent does; deltas that come as they should: origin_test.
#include "raas_receiver/origin/subscription.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <thread>

#include "common/base/eventually.h"
#include "common/base/status_testing.h"
#include "raas_receiver/origin/test_agent.h"

namespace lockstep::origin {
namespace {

using pull::Fault;

// A subscription of an agent whose version 2 follows version 1 once it is published.
struct Fixture {
  replica::TestModel model{3};
  TestAgent agent{model};
  net::IoThreads io{2, [](std::string_view what) { throw std::logic_error(std::string(what)); }};
  AgentOriginOptions options{.model = "actor",
                             .receiver = "r",
                             .agent = agent.address(),
                             .lanes = 3,
                             .patience = std::chrono::minutes(1)};  // more than a busy machine needs
  AgentClient client{options.agent};
  Subscription subscription{options, client, io};
  std::shared_ptr<const payload::Payload> delta = model.Delta(1, 2);

  Fixture() { agent.streaming = true; }
  void Ask() { subscription.Ask({model.held(1), model.manifest(1).digest, model.layout()}, {}); }
  // The delta, bit for bit, or why nothing of it came.
  Status Fetch() {
    const payload::PayloadHeader& header = delta->header();
    DeltaStaging staging(*model.layout(), model.run(),
                         {{.payload_id = 1,
                           .base = 1,
                           .target = 2,
                           .target_digest = header.target_digest,
                           .entries = header.entries,
                           .data_bytes = header.data_bytes}});
    const Status fetched = subscription.FetchDeltas(staging.TakeMissing(), staging);
    const auto chain = staging.Assemble(header.base_digest, 0);
    CHECK(chain.ok() == fetched.ok());
    CHECK(subscription.counters().streamed_bytes == (fetched.ok() ? header.data_bytes : 0));
    if (chain.ok()) CHECK(std::ranges::equal((*chain)[0]->bytes(), delta->bytes()));
    return fetched;
  }
};

TEST_CASE("Whatever a lane does wrong spoils the delta, and what is asked for next comes over new lanes") {
  const Fault fault =
      GENERATE(Fault::kRefuseTicket, Fault::kForeignWelcome, Fault::kCloseBeforeFrame, Fault::kCloseInPayload,
               Fault::kCorruptHeader, Fault::kCorruptPayload, Fault::kForeignBlock, Fault::kBlockTwice,
               Fault::kOldVersion, Fault::kOtherPayload, Fault::kWrongEnd, Fault::kTooLarge);
  CAPTURE(static_cast<int>(fault));
  Fixture fixture;
  fixture.agent.lanes().at_frame = 1;
  fixture.agent.lanes().fault_of = [&](int connection) { return connection == 1 ? fault : Fault::kNone; };
  fixture.agent.Publish();
  fixture.Ask();
  CHECK_THAT(fixture.Fetch(), FailsWith(CodeOf(fault), "standing lane "));
  fixture.Ask();
  CHECK(fixture.Fetch().ok());
}

TEST_CASE("Lanes that are lost before the delta begins are opened again when it is asked for again") {
  Fixture fixture;
  fixture.agent.lanes().fault_of = [](int connection) { return connection == 0 ? Fault::kRefuseTicket : Fault::kNone; };
  fixture.Ask();
  CHECK(Eventually([&] {
    fixture.Ask();
    return fixture.agent.lanes().connections() > 3;
  }));
  fixture.agent.Publish();
  CHECK(fixture.Fetch().ok());
}

TEST_CASE("That a version was aborted is an answer, and the lanes can be asked again") {
  Fixture fixture;
  std::atomic<bool> aborted = true;
  fixture.agent.refuse_full = [&](const wire::BlockRequest&) {
    return aborted ? Status(ErrorCode::kAborted, "rank 2 vanished") : OkStatus();
  };
  fixture.agent.Publish();
  fixture.Ask();
  CHECK_THAT(fixture.Fetch(), FailsWith(ErrorCode::kAborted, "rank 2 vanished"));
  aborted = false;
  fixture.Ask();
  CHECK(fixture.Fetch().ok());
  CHECK(fixture.agent.lanes().connections() == 3);
}

TEST_CASE("A lane that stalls in the middle is not waited for long") {
  Fixture fixture;
  fixture.options.patience = std::chrono::milliseconds(200);
  fixture.agent.lanes().at_frame = 1;
  fixture.agent.lanes().fault_of = [](int connection) { return connection == 1 ? Fault::kStall : Fault::kNone; };
  fixture.agent.Publish();
  fixture.Ask();
  CHECK(fixture.Fetch().code() == ErrorCode::kDeadline);
}

TEST_CASE("A cancelled fetch comes back at once") {
  Fixture fixture;
  fixture.Ask();  // for what is not begun
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    fixture.subscription.Cancel();
  });
  CHECK(fixture.Fetch().code() == ErrorCode::kCancelled);
  canceller.join();
}

}  // namespace
}  // namespace lockstep::origin

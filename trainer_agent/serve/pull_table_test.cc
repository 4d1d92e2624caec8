// Pulls: what is planned, who is let in, and what expires.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>

#include "common/base/status_testing.h"
#include "proto/lockstep/v1/model.pb.h"
#include "trainer_agent/serve/agent_protos.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::serve {
namespace {

TEST_CASE("What a receiver holds decides what it gets") {
  Served served;
  CHECK((*served.pulls.Open(served.Request(1))).mode == v1::PULL_MODE_UP_TO_DATE);
  served.Publish(2);
  CHECK((*served.pulls.Open(served.Request(1))).mode == v1::PULL_MODE_DELTA);
  served.Publish(3);
  const auto folded = served.pulls.Open(served.Request(1));
  CHECK(folded->mode == v1::PULL_MODE_FOLDED);
  CHECK(folded->target.version == 3);
  const auto full = served.pulls.Open(served.Request());
  CHECK(full->mode == v1::PULL_MODE_FULL);
  CHECK(full->payload_bytes == kBlocks * kBlock);
  CHECK(full->tickets.size() == 2);
  CHECK_THAT(served.pulls.Open(served.Request()),
             FailsWith(ErrorCode::kResourceExhausted, "pulls are open, the limit"));
}

TEST_CASE("Another run, other bytes under the same number, or a request for full blocks get full") {
  Served served;
  served.Publish(2);
  PullRequest other_run = served.Request(1);
  other_run.held.run = RandomId<RunId>();
  CHECK((*served.pulls.Open(other_run)).mode == v1::PULL_MODE_FULL);
  PullRequest other_bytes = served.Request(1);
  other_bytes.held_digest = RandomId<ManifestDigest>();
  CHECK((*served.pulls.Open(other_bytes)).mode == v1::PULL_MODE_FULL);
  PullRequest forced = served.Request(2);
  forced.force_full = true;
  CHECK((*served.pulls.Open(forced)).mode == v1::PULL_MODE_FULL);
}

TEST_CASE("A receiver on a slow link gets no codec level that it cannot decode") {
  Served served;
  served.Publish(2);
  PullRequest request = served.Request(1);
  request.link_bytes_per_s = 1'000'000;
  CHECK(served.pulls.Open(request)->level > payload::CodecLevel::kFast);
  request.levels = {payload::CodecLevel::kFast};
  CHECK(served.pulls.Open(request)->level == payload::CodecLevel::kFast);
}

TEST_CASE("Requests to pull say what their receiver decodes; one without a common protocol is refused by name") {
  v1::OpenPullRequest request;
  CHECK(FromProto(request)->levels.size() == 2);  // release 0.1.0
  request.set_peer("raas_receiver/0.3.0 protocol=1-1 codec-fast");
  CHECK(FromProto(request)->levels == std::vector{payload::CodecLevel::kFast});
  request.set_peer("raas_receiver/9.0.0 protocol=7-8");
  CHECK_THAT(FromProto(request), FailsWith(ErrorCode::kProtocol, "upgrade the trainer_agent"));
}

TEST_CASE("Unknown models and foreign layouts are refused") {
  Served served;
  PullRequest request = served.Request();
  request.model = "nobody";
  CHECK_THAT(served.pulls.Open(request), FailsWith(ErrorCode::kNotFound, "nobody"));
  request = served.Request();
  request.layout = {};
  CHECK_THAT(served.pulls.Open(request), FailsWith(ErrorCode::kState, "the receiver's layout"));
}

TEST_CASE("A ticket admits one lane once, and only to its pull") {
  Served served;
  const auto plan = served.pulls.Open(served.Request());
  const auto other = served.pulls.Open(served.Request());
  CHECK_THAT(served.pulls.Admit(other->pull_id, plan->tickets[0]),
             FailsWith(ErrorCode::kPermission, "ticket is unknown, used up or expired"));
  CHECK(served.pulls.Admit(plan->pull_id, plan->tickets[0]).ok());
  CHECK_THAT(served.pulls.Admit(plan->pull_id, plan->tickets[0]),
             FailsWith(ErrorCode::kPermission, "ticket is unknown, used up or expired"));
  const auto renewed = served.pulls.RenewTickets(plan->pull_id, 100);
  CHECK(renewed->size() == 3);
  CHECK(served.pulls.Admit(plan->pull_id, (*renewed)[2]).ok());
  served.pulls.Close(plan->pull_id, {served.run->run(), 1}, "ok");
  CHECK_THAT(served.pulls.Admit(plan->pull_id, plan->tickets[1]),
             FailsWith(ErrorCode::kPermission, "ticket is unknown, used up or expired"));
  CHECK(served.pulls.reports().Of("actor").at(0).outcome == "ok");
  CHECK(served.pulls.open_pulls("actor") == 1);
}

TEST_CASE("A full pull that was overtaken gets the steps from its oldest block on") {
  Served served;
  const auto plan = served.pulls.Open(served.Request());
  served.Publish(2);
  served.Publish(3);
  const auto steps = served.pulls.CatchUp(plan->pull_id, 1);
  REQUIRE(steps.ok());
  CHECK(steps->steps.size() == 2);
  CHECK(steps->target.version == 3);
  CHECK((*served.pulls.CatchUp(plan->pull_id, 3)).steps.empty());
  CHECK_THAT(served.pulls.CatchUp(plan->pull_id + 1, 1),
             FailsWith(ErrorCode::kNotFound, "is not open; it may have expired"));
}

TEST_CASE("Live lanes of a pull are limited, and the end of one makes room") {
  Served served;
  const auto plan = served.pulls.Open(served.Request());
  std::vector<Pull::LaneLease> lanes;
  for (int i = 0; i < 6; ++i) {
    const auto ticket = served.pulls.RenewTickets(plan->pull_id, 1)->at(0);
    lanes.push_back(*served.pulls.Admit(plan->pull_id, ticket));
  }
  auto ticket = served.pulls.RenewTickets(plan->pull_id, 1)->at(0);
  CHECK_THAT(served.pulls.Admit(plan->pull_id, ticket),
             FailsWith(ErrorCode::kResourceExhausted, "lanes, twice --max-lanes"));
  lanes.pop_back();
  ticket = served.pulls.RenewTickets(plan->pull_id, 1)->at(0);
  CHECK(served.pulls.Admit(plan->pull_id, ticket).ok());
}

TEST_CASE("A pull that nobody touches expires") {
  Served served;
  PullTable pulls(&served.catalog, {.max_pulls = 1, .idle_timeout = std::chrono::hours(1)});
  const auto plan = pulls.Open(served.Request());
  CHECK_THAT(pulls.Open(served.Request()), FailsWith(ErrorCode::kResourceExhausted, "1 pulls are open, the limit"));
  pulls.Expire(Pull::Clock::now() + std::chrono::minutes(61));
  CHECK(pulls.Open(served.Request()).ok());
  CHECK_THAT(pulls.Admit(plan->pull_id, plan->tickets[0]),
             FailsWith(ErrorCode::kPermission, "ticket is unknown, used up or expired"));
}

TEST_CASE("The control plane has every codec level, by number and name, and no others") {
  const auto* levels = v1::CodecLevel_descriptor();
  for (const payload::CodecLevel level : payload::CodecLevel::All()) {
    const auto* value = levels->FindValueByNumber(level->number);
    REQUIRE(value != nullptr);
    std::string name = "CODEC_LEVEL_" + std::string(level->name);
    std::ranges::transform(name, name.begin(), [](unsigned char letter) { return std::toupper(letter); });
    CHECK(value->name() == name);
  }
  CHECK(static_cast<size_t>(levels->value_count()) == payload::CodecLevel::All().size() + 1);  // and unspecified
}

}  // namespace
}  // namespace lockstep::serve

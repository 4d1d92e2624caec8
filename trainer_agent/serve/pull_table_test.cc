// Pulls: what is planned, which lanes are admitted, and what expires.
#include <catch2/catch.hpp>
#include <utility>

#include "common/base/status_testing.h"
#include "common/base/text.h"
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
  const auto chain = served.pulls.Open(served.Request(1));
  CHECK(chain->mode == v1::PULL_MODE_CHAIN);
  CHECK(chain->steps.size() == 2);
  CHECK(chain->target.version == 3);
  const auto full = served.pulls.Open(served.Request());
  CHECK(full->mode == v1::PULL_MODE_FULL);
  CHECK(full->payload_bytes == kBlocks * kBlock);
  CHECK(full->tickets.size() == 2);
  CHECK_THAT(served.pulls.Open(served.Request()),
             FailsWith(ErrorCode::kResourceExhausted, "pulls are open, the limit"));
}

TEST_CASE("A plan says what its target is called, whatever way leads there") {
  Served served;
  served.Publish(2, "a");
  CHECK(served.pulls.Open(served.Request(2))->label == "a");
  CHECK(served.pulls.Open(served.Request(1))->label == "a");
  served.Publish(3, "b");
  const auto full = served.pulls.Open(served.Request());
  CHECK(full->label == "b");
  served.Publish(4);
  CHECK(served.pulls.CatchUp(full->pull_id, 3, "")->label.empty());
  served.Publish(5, "c");
  CHECK(served.pulls.CatchUp(full->pull_id, 3, "")->label == "c");
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

TEST_CASE("Requests to pull name their receiver; one of another protocol is refused by name") {
  v1::OpenPullRequest request;
  CHECK_THAT(FromProto(request), FailsWith(ErrorCode::kProtocol, "a peer says of itself \"\""));
  request.set_peer("raas_receiver/0.3.0 protocol=1");
  CHECK(FromProto(request).ok());
  request.set_peer("raas_receiver/9.0.0 protocol=7");
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

TEST_CASE("A pull belongs to the identity that opened it") {
  Served served;
  PullRequest request = served.Request();
  request.owner = "infer-0";
  const auto plan = served.pulls.Open(request);
  const std::string not_open = Cat("pull ", plan->pull_id, " is not open");
  CHECK_THAT(served.pulls.CatchUp(plan->pull_id, 1, "infer-1"), FailsWith(ErrorCode::kNotFound, not_open));
  CHECK_THAT(served.pulls.RenewTickets(plan->pull_id, 1, "infer-1"), FailsWith(ErrorCode::kNotFound, not_open));
  served.pulls.Close(plan->pull_id, {}, "stolen", "infer-1");
  CHECK(served.pulls.open_pulls("actor") == 1);
  CHECK(served.pulls.CatchUp(plan->pull_id, 1, "infer-0").ok());
  CHECK(served.pulls.RenewTickets(plan->pull_id, 1, "infer-0").ok());
  served.pulls.Close(plan->pull_id, {}, "ok", "infer-0");
  CHECK(served.pulls.open_pulls("actor") == 0);
}

TEST_CASE("An identity that has used up its own pulls leaves room for others") {
  Served served;
  PullTable pulls(&served.catalog, {.max_pulls = 8});
  const auto open = [&](const std::string& owner) {
    PullRequest request = served.Request();
    request.owner = owner;
    return pulls.Open(request);
  };
  CHECK(open("greedy").ok());
  const auto second = open("greedy");
  CHECK(second.ok());
  CHECK_THAT(open("greedy"), FailsWith(ErrorCode::kResourceExhausted, "2 pulls of greedy are open"));
  CHECK(open("infer-0").ok());
  pulls.Close(second->pull_id, {}, "ok", "greedy");
  CHECK(open("greedy").ok());
  for (int i = 0; i < 4; ++i) CHECK(open("").ok());  // those without a name are not told apart
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

TEST_CASE("A delta that is there before its version is served is not promised") {
  Served served;
  served.Publish(2);
  const auto full = served.pulls.Open(served.Request());
  served.Retain(3);
  const auto plan = served.pulls.Open(served.Request(1));
  CHECK(plan->target.version == 2);
  REQUIRE(plan->mode == v1::PULL_MODE_DELTA);
  CHECK(plan->steps.at(0).payload->target().version == 2);
  const auto steps = served.pulls.CatchUp(full->pull_id, 1);
  CHECK(steps->target.version == 2);
  CHECK(steps->steps.size() == 1);
}

TEST_CASE("Standing lanes of a pull are limited, and the end of one makes room") {
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

TEST_CASE("An untouched pull expires") {
  Served served;
  PullTable pulls(&served.catalog, {.max_pulls = 1, .idle_timeout = std::chrono::hours(1)});
  const auto plan = pulls.Open(served.Request());
  CHECK_THAT(pulls.Open(served.Request()), FailsWith(ErrorCode::kResourceExhausted, "1 pulls are open, the limit"));
  pulls.Expire(Pull::Clock::now() + std::chrono::minutes(61));
  CHECK(pulls.Open(served.Request()).ok());
  CHECK_THAT(pulls.Admit(plan->pull_id, plan->tickets[0]),
             FailsWith(ErrorCode::kPermission, "ticket is unknown, used up or expired"));
}

// Whether the pull of `plan` still has what the plan's one step names, by a lane that asks for it.
Status HasPayload(PullTable& pulls, const PullPlan& plan) {
  const auto lane = pulls.Admit(plan.pull_id, pulls.RenewTickets(plan.pull_id, 1)->at(0));
  return ToStatus((*lane)->FindPayload(plan.steps.at(0).payload_id));
}

TEST_CASE(
    "What slow pulls hold of deltas that were let go is bounded: the first give theirs back, and pull another way") {
  Served served(4096);  // one delta; they take about 1 KiB each, and each a page of its own
  PullTable pulls(&served.catalog, {.idle_timeout = std::chrono::hours(1)});
  std::vector<PullPlan> plans;
  uint64_t bytes = 0;
  for (Version version = 2; version <= 7; ++version) {
    served.Publish(version);
    plans.push_back(*pulls.Open(served.Request(version - 1)));
    REQUIRE(plans.back().mode == v1::PULL_MODE_DELTA);
    bytes += std::exchange(plans.back().steps.at(0).payload, nullptr)->total_bytes();
  }
  served.Publish(8);
  run::DeltaStore& deltas = served.run->deltas();
  REQUIRE(bytes > 4096);
  CHECK(deltas.DroppedBytes() > 4096);
  pulls.Expire();
  CHECK(deltas.DroppedBytes() <= 4096);
  CHECK(deltas.DroppedBytes() > 2048);
  CHECK_THAT(HasPayload(pulls, plans.front()), FailsWith(ErrorCode::kState, "was taken back", "pull again"));
  CHECK(HasPayload(pulls, plans.back()).ok());
  CHECK((*pulls.Open(served.Request(1))).mode == v1::PULL_MODE_FULL);
  // However little it is, not for ever.
  pulls.Expire(Pull::Clock::now() + run::DeltaStore::kMaxDroppedAge);
  CHECK(deltas.DroppedBytes() == 0);
  CHECK_THAT(HasPayload(pulls, plans.back()), FailsWith(ErrorCode::kState, "was taken back"));
}

}  // namespace
}  // namespace lockstep::serve

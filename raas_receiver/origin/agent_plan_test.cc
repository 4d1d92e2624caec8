#include "raas_receiver/origin/agent_plan.h"

#include <catch2/catch.hpp>
#include <functional>

#include "common/base/status_testing.h"
#include "raas_receiver/origin/agent_client.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::origin {
namespace {

const Control kControl{.address = net::HostPort{"10.1.2.3", 7700}};

struct Fixture {
  replica::TestModel model;
  VersionRef held = model.held(3);

  v1::PullPlan Chain() const {
    v1::PullPlan plan;
    plan.set_pull_id(77);
    plan.set_mode(v1::PULL_MODE_CHAIN);
    *plan.mutable_base() = ToProto(model.held(3));
    *plan.mutable_target() = ToProto(model.held(5));
    plan.set_target_digest(ToBytes(RandomId<ManifestDigest>()));
    plan.add_tickets(ToBytes(RandomId<Ticket>()));
    plan.set_lane_address("127.0.0.1:7701");
    plan.set_local_socket("/run/pull.sock");
    plan.set_local_ticket(ToBytes(RandomId<Ticket>()));
    for (Version base = 3; base < 5; ++base) {
      v1::DeltaStep& step = *plan.add_steps();
      step.set_payload_id(base + 10);
      step.set_base(base);
      step.set_target(base + 1);
      step.set_entries(4);
      step.set_data_bytes(400);
      step.set_target_digest(base == 4 ? plan.target_digest() : ToBytes(RandomId<ManifestDigest>()));
    }
    return plan;
  }
  ErrorCode CodeOf(const v1::PullPlan& plan) const {
    return ReadPlan(plan, model.layout(), held, kControl).status().code();
  }
};

}  // namespace

TEST_CASE("A plan that keeps the rules is read as it stands") {
  const Fixture fixture;
  const auto plan = ReadPlan(fixture.Chain(), fixture.model.layout(), fixture.held, kControl);
  REQUIRE(plan.ok());
  CHECK(plan->plan.target == fixture.model.held(5));
  CHECK(plan->plan.steps.size() == 2);
  CHECK(plan->lanes.tickets.size() == 1);
  CHECK(plan->lanes.agent == net::HostPort{"127.0.0.1", 7701});
  CHECK(plan->local_socket == "/run/pull.sock");
  CHECK(plan->plan.mode() == "chain");
}

TEST_CASE("A plan's label is one, or the plan is refused") {
  const Fixture fixture;
  v1::PullPlan proto = fixture.Chain();
  proto.set_label("step 7");
  CHECK(ReadPlan(proto, fixture.model.layout(), fixture.held, kControl)->plan.label == "step 7");
  for (const std::string& bad : {std::string(65, 'x'), std::string("a\nb")}) {
    proto.set_label(bad);
    CHECK_THAT(ReadPlan(proto, fixture.model.layout(), fixture.held, kControl),
               FailsWith(ErrorCode::kProtocol, "has a label that is none"));
  }
}

TEST_CASE("A lane address without a host is on the control channel's") {
  const Fixture fixture;
  v1::PullPlan proto = fixture.Chain();
  proto.set_lane_address(":7701");
  CHECK(ReadPlan(proto, fixture.model.layout(), fixture.held, kControl)->lanes.agent ==
        net::HostPort{"10.1.2.3", 7701});
}

TEST_CASE("Lanes are encrypted where the plan says so, and a receiver with encrypted calls refuses plaintext lanes") {
  const Fixture fixture;
  const Control encrypted{.address = kControl.address, .encrypted = true};
  v1::PullPlan proto = fixture.Chain();
  v1::PullPlan standing;
  standing.set_mode(v1::PULL_MODE_STANDING);
  standing.set_pull_id(78);
  standing.set_lane_address(":7701");
  standing.add_tickets(ToBytes(RandomId<Ticket>()));
  const auto& layout = fixture.model.layout();
  CHECK(ReadPlan(proto, layout, fixture.held, kControl)->lanes.tls == nullptr);
  CHECK(ReadStandingPlan(standing, layout, kControl)->tls == nullptr);
  CHECK_THAT(ReadPlan(proto, layout, fixture.held, encrypted),
             FailsWith(ErrorCode::kProtocol, "the plan of pull 77 has lanes in plaintext although"));
  CHECK_THAT(ReadStandingPlan(standing, layout, encrypted),
             FailsWith(ErrorCode::kProtocol, "the plan of pull 78 has lanes in plaintext although"));
  proto.set_lanes_encrypted(true);
  standing.set_lanes_encrypted(true);
  for (const Control& control : {kControl, encrypted}) {
    CHECK(ReadPlan(proto, layout, fixture.held, control)->lanes.tls != nullptr);
    CHECK(ReadStandingPlan(standing, layout, control)->tls != nullptr);
  }
}

TEST_CASE("A plan of another pull than a standing one opens no lanes for what is to come") {
  const Fixture fixture;
  v1::PullPlan plan = fixture.Chain();
  CHECK_THAT(ReadStandingPlan(plan, fixture.model.layout(), kControl),
             FailsWith(ErrorCode::kProtocol, "is of no standing pull"));
  plan.set_mode(v1::PULL_MODE_STANDING);
  CHECK(ReadStandingPlan(plan, fixture.model.layout(), kControl)->tickets.size() == 1);
  CHECK(fixture.CodeOf(plan) == ErrorCode::kProtocol);
  plan.set_pull_id(0);
  CHECK_THAT(ReadStandingPlan(plan, fixture.model.layout(), kControl), FailsWith(ErrorCode::kProtocol, "has no id"));
}

TEST_CASE("A plan that breaks a rule is refused") {
  const Fixture fixture;
  const std::function<void(v1::PullPlan&)> foul[] = {
      [](v1::PullPlan& plan) { plan.mutable_base()->set_version(2); },
      [](v1::PullPlan& plan) { plan.mutable_target()->set_version(6); },
      [](v1::PullPlan& plan) { plan.mutable_target()->set_run(std::string(16, 'x')); },
      [](v1::PullPlan& plan) { plan.mutable_target()->set_run("short"); },
      [](v1::PullPlan& plan) { plan.clear_target(); },
      [](v1::PullPlan& plan) { plan.set_target_digest("short"); },
      [](v1::PullPlan& plan) { plan.set_target_digest(std::string(16, 'x')); },
      [](v1::PullPlan& plan) { plan.set_mode(v1::PULL_MODE_DELTA); },
      [](v1::PullPlan& plan) { plan.set_mode(v1::PULL_MODE_FULL); },
      [](v1::PullPlan& plan) { plan.set_mode(v1::PULL_MODE_UP_TO_DATE); },
      [](v1::PullPlan& plan) { plan.set_mode(v1::PULL_MODE_UNSPECIFIED); },
      [](v1::PullPlan& plan) { plan.clear_tickets(); },
      [](v1::PullPlan& plan) { plan.add_tickets("short"); },
      [](v1::PullPlan& plan) { plan.set_local_socket("pull.sock"); },
      [](v1::PullPlan& plan) { plan.set_local_socket("/run/\001"); },
      [](v1::PullPlan& plan) { plan.set_local_ticket("short"); },
      [](v1::PullPlan& plan) { plan.clear_steps(); },
      [](v1::PullPlan& plan) { plan.mutable_steps(0)->set_base(4); },
      [](v1::PullPlan& plan) { plan.mutable_steps(1)->set_base(3); },
      [](v1::PullPlan& plan) { plan.mutable_steps(1)->set_payload_id(0); },
      [](v1::PullPlan& plan) { plan.mutable_steps(0)->set_entries(1 << 30); },
      [](v1::PullPlan& plan) { plan.mutable_steps(0)->set_data_bytes(uint64_t{1} << 50); },
      [](v1::PullPlan& plan) { plan.mutable_steps(0)->set_data_bytes(3); },
      [](v1::PullPlan& plan) { plan.mutable_steps(0)->set_target_digest(""); },
  };
  for (const auto& change : foul) {
    v1::PullPlan plan = fixture.Chain();
    change(plan);
    INFO(plan.ShortDebugString());
    CHECK(fixture.CodeOf(plan) == ErrorCode::kProtocol);
  }
  v1::PullPlan nowhere = fixture.Chain();
  nowhere.set_lane_address("nowhere");
  CHECK_THAT(ReadPlan(nowhere, fixture.model.layout(), fixture.held, kControl),
             FailsWith(ErrorCode::kProtocol, "the plan of pull 77 ", "'nowhere' has no port"));
}

TEST_CASE("A delta is refused by a receiver that holds nothing, whatever the plan's base") {
  Fixture fixture;
  fixture.held = {};
  CHECK(fixture.CodeOf(fixture.Chain()) == ErrorCode::kProtocol);
}

TEST_CASE("Catching up stays in the run of the full pull and starts at the oldest block's version") {
  const Fixture fixture;
  Plan full;
  full.target = fixture.model.held(3);
  CHECK(ReadCatchUp(fixture.Chain(), *fixture.model.layout(), full, 3).ok());
  CHECK_THAT(ReadCatchUp(fixture.Chain(), *fixture.model.layout(), full, 2),
             FailsWith(ErrorCode::kProtocol, "a step from version 3 where 2 is due"));
  full.target.run = RandomId<RunId>();
  CHECK_THAT(ReadCatchUp(fixture.Chain(), *fixture.model.layout(), full, 3),
             FailsWith(ErrorCode::kProtocol, "catches up with another run"));
}

}  // namespace lockstep::origin

// What an agent answers to a receiver's OpenPull and CatchUp (raas_receiver/origin/agent_plan.h). An input is
// a byte that says which, and a message in protobuf's encoding.
#include "common/model/label.h"
#include "raas_receiver/origin/agent_plan.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"

namespace lockstep::fuzz {
namespace {

using origin::Plan;

enum class Answer : uint8_t { kPull, kStanding, kCatchUp };

const VersionRef kHeld{SmallRun(), 3};
const origin::Control kPlain{.address = net::HostPort{"10.1.2.3", 7700}, .plain = {}};
const origin::Control kEncrypted{.address = net::HostPort{"10.1.2.3", 7700}, .encrypted = true, .plain = {}};

Bytes InputOf(Answer answer, const google::protobuf::Message& message) {
  Bytes input;
  Append(input, answer);
  const std::string encoded = message.SerializeAsString();
  AppendBytes(input, AsBytes(std::string_view(encoded)));
  return input;
}

std::string Id(char filled_with) {
  return std::string(16, filled_with);
}

v1::PullPlan Lanes(v1::PullMode mode) {
  v1::PullPlan plan;
  plan.set_pull_id(77);
  plan.set_mode(mode);
  plan.add_tickets(Id('t'));
  plan.set_lane_address(":7701");
  return plan;
}

v1::PullPlan PlanTo(v1::PullMode mode, Version target) {
  v1::PullPlan plan = Lanes(mode);
  *plan.mutable_target() = origin::ToProto({SmallRun(), target});
  plan.set_target_digest(Id('d'));
  return plan;
}

v1::PullPlan Chain() {
  v1::PullPlan plan = PlanTo(v1::PULL_MODE_CHAIN, 5);
  *plan.mutable_base() = origin::ToProto(kHeld);
  plan.set_label("step 5");
  plan.set_local_socket("/run/pull.sock");
  plan.set_local_ticket(Id('l'));
  for (Version base = 3; base < 5; ++base) {
    v1::DeltaStep& step = *plan.add_steps();
    step.set_payload_id(base);
    step.set_base(base);
    step.set_target(base + 1);
    step.set_entries(2);
    step.set_data_bytes(40);
    step.set_target_digest(Id('d'));
  }
  return plan;
}

void CheckSteps(const Plan& plan) {
  Version reached = plan.base.version;
  for (const pull::DeltaStep& step : plan.steps) {
    LS_FUZZ_RULE(step.payload_id != 0);
    LS_FUZZ_RULE(step.base == reached && step.target > step.base);
    LS_FUZZ_RULE(step.entries <= SmallLayout()->block_count());
    LS_FUZZ_RULE(step.data_bytes >= step.entries && step.data_bytes <= SmallLayout()->data_bytes());
    reached = step.target;
  }
  LS_FUZZ_RULE(plan.steps.empty() || reached == plan.target.version);
  LS_FUZZ_RULE(!plan.target.nothing() && !plan.target.run.IsZero());
  LS_FUZZ_RULE(model::CheckLabel(plan.label).ok());
}

void CheckLanes(const pull::LanePeer& lanes, bool encrypted) {
  LS_FUZZ_RULE(!lanes.tickets.empty() && lanes.tickets.size() <= 1024);
  LS_FUZZ_RULE(!lanes.agent.host.empty());
  LS_FUZZ_RULE(!encrypted || lanes.tls != nullptr);
}

void TestPull(const v1::PullPlan& proto, ByteView input) {
  for (const origin::Control& control : {kPlain, kEncrypted}) {
    const auto plan = origin::ReadPlan(proto, SmallLayout(), kHeld, control);
    if (!plan.ok()) {
      CheckRefusal(plan.status(), {ErrorCode::kProtocol});
      continue;
    }
    CheckSteps(plan->plan);
    LS_FUZZ_RULE(plan->plan.steps.empty() || plan->plan.base == kHeld);
    if (plan->lanes.tickets.empty()) {
      LS_FUZZ_RULE(plan->plan.target == kHeld && plan->plan.mode() == "up_to_date");
      continue;
    }
    CheckLanes(plan->lanes, control.encrypted);
    LS_FUZZ_RULE(plan->local_socket.empty() || plan->local_socket.starts_with('/'));
    if (control.encrypted) continue;
    Accepted(input, {plan->plan.target.version > 6, plan->plan.transfer != 77, plan->lanes.agent.port != 7701});
  }
}

void TestStanding(const v1::PullPlan& proto) {
  for (const origin::Control& control : {kPlain, kEncrypted}) {
    const auto lanes = origin::ReadStandingPlan(proto, SmallLayout(), control);
    if (!lanes.ok()) {
      CheckRefusal(lanes.status(), {ErrorCode::kProtocol});
      continue;
    }
    LS_FUZZ_RULE(lanes->pull_id != 0);
    CheckLanes(*lanes, control.encrypted);
  }
}

void TestCatchUp(const v1::PullPlan& proto) {
  const Plan full{.transfer = 77, .full = true, .target = {SmallRun(), 4}};
  const auto plan = origin::ReadCatchUp(proto, *SmallLayout(), full, 3);
  if (!plan.ok()) return CheckRefusal(plan.status(), {ErrorCode::kProtocol});
  CheckSteps(*plan);
  LS_FUZZ_RULE(plan->base == kHeld && plan->target.run == SmallRun());
}

}  // namespace

std::vector<Bytes> Seeds() {
  v1::PullPlan standing = Lanes(v1::PULL_MODE_STANDING);
  standing.set_lanes_encrypted(true);
  v1::PullPlan encrypted = PlanTo(v1::PULL_MODE_FULL, 6);
  encrypted.set_lanes_encrypted(true);
  encrypted.set_lane_address("[::1]:7701");
  return {InputOf(Answer::kPull, Chain()),      InputOf(Answer::kPull, PlanTo(v1::PULL_MODE_FULL, 6)),
          InputOf(Answer::kPull, encrypted),    InputOf(Answer::kPull, PlanTo(v1::PULL_MODE_UP_TO_DATE, 3)),
          InputOf(Answer::kStanding, standing), InputOf(Answer::kCatchUp, Chain())};
}

void TestInput(ByteView input) {
  ByteReader reader(input);
  Answer answer{};
  if (!reader.Take(answer)) return;
  const ByteView message = reader.rest();
  v1::PullPlan plan;
  if (!plan.ParseFromArray(message.data(), static_cast<int>(message.size()))) return;
  if (answer == Answer::kStanding) return TestStanding(plan);
  if (answer == Answer::kCatchUp) return TestCatchUp(plan);
  TestPull(plan, input);
}

}  // namespace lockstep::fuzz

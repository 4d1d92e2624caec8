#include "raas_receiver/origin/agent_plan.h"

#include "common/base/text.h"
#include "common/model/label.h"

namespace lockstep::origin {
namespace {

constexpr size_t kMaxSteps = 4096;
constexpr size_t kMaxLanes = 1024;

Status Broken(const v1::PullPlan& proto, std::string rule) {
  return {ErrorCode::kProtocol, Cat("the plan of pull ", proto.pull_id(), " ", rule)};
}

template <typename Id>
Result<Id> ReadId(const std::string& raw) {
  LS_ASSIGN_OR_RETURN(const auto bytes, Bytes16(raw));
  return Id{bytes};
}

Result<pull::DeltaStep> ReadStep(const v1::PullPlan& proto, const v1::DeltaStep& step,
                                 const model::ModelLayout& layout) {
  pull::DeltaStep read{step.payload_id(), step.base(),       step.target(),          {},
                       step.entries(),    step.data_bytes(), step.changed_elements()};
  LS_ASSIGN_OR_RETURN(read.target_digest, ReadId<ManifestDigest>(step.target_digest()));
  if (read.payload_id == 0) return Broken(proto, "has a step without a payload id");
  if (read.base >= read.target) return Broken(proto, Cat("has a step from version ", read.base, " to ", read.target));
  // A coded block is never larger than the block, and never empty.
  if (read.entries > layout.block_count() || read.data_bytes > layout.data_bytes() || read.data_bytes < read.entries) {
    return Broken(proto, Cat("has a step of ", read.entries, " blocks and ", read.data_bytes, " bytes for a model of ",
                             layout.block_count(), " blocks and ", layout.data_bytes(), " bytes"));
  }
  return read;
}

Status ReadSteps(const v1::PullPlan& proto, const model::ModelLayout& layout, Plan& plan) {
  if (proto.steps_size() > static_cast<int>(kMaxSteps)) return Broken(proto, Cat("has ", proto.steps_size(), " steps"));
  Version reached = plan.base.version;
  for (const v1::DeltaStep& step : proto.steps()) {
    LS_ASSIGN_OR_RETURN(const pull::DeltaStep read, ReadStep(proto, step, layout));
    if (read.base != reached)
      return Broken(proto, Cat("has a step from version ", read.base, " where ", reached, " is due"));
    reached = read.target;
    plan.steps.push_back(read);
  }
  if (reached != plan.target.version) {
    return Broken(proto, Cat("leads to version ", reached, ", not to its target ", plan.target.version));
  }
  if (!plan.steps.empty() && plan.steps.back().target_digest != plan.target_digest) {
    return Broken(proto, "ends in another digest than its target's");
  }
  return OkStatus();
}

Result<Plan> ReadCommon(const v1::PullPlan& proto) {
  Plan plan;
  plan.transfer = proto.pull_id();
  plan.committed_unix_ns = proto.committed_unix_ns();
  plan.changed_elements = proto.changed_elements();
  LS_ASSIGN_OR_RETURN(plan.base, FromProto(proto.base()));
  LS_ASSIGN_OR_RETURN(plan.target, FromProto(proto.target()));
  LS_ASSIGN_OR_RETURN(plan.target_digest, ReadId<ManifestDigest>(proto.target_digest()));
  plan.label = proto.label();
  if (!model::CheckLabel(plan.label).ok()) return Broken(proto, "has a label that is none");
  if (plan.target.nothing() || plan.target.run.IsZero()) return Broken(proto, "has no target");
  return plan;
}

Result<pull::LanePeer> ReadLanes(const v1::PullPlan& proto, const Layout& layout, const Control& control) {
  pull::LanePeer peer{.pull_id = proto.pull_id(), .layout = layout, .plain = control.plain};
  if (proto.tickets().empty() || proto.tickets_size() > static_cast<int>(kMaxLanes)) {
    return Broken(proto, Cat("grants ", proto.tickets_size(), " lanes"));
  }
  LS_ASSIGN_OR_RETURN(peer.tickets, TicketsOf(proto.tickets()));
  if (proto.lanes_encrypted()) {
    LS_ASSIGN_OR_RETURN(peer.tls, net::TlsContext::Create(net::TlsContext::Side::kConnects));
  } else if (control.encrypted) {
    return Broken(proto, "has lanes in plaintext although the agent is called by TLS; upgrade the trainer_agent");
  }
  const bool no_host = proto.lane_address().starts_with(':');
  const std::string address = no_host ? Cat("0.0.0.0", proto.lane_address()) : proto.lane_address();
  Result<net::HostPort> agent = net::ParseHostPort(address);
  if (!agent.ok()) return Broken(proto, Cat("cannot be followed to its lanes: ", agent.status().message()));
  peer.agent = *std::move(agent);
  if (no_host) peer.agent.host = control.address.host;
  return peer;
}

Status ReadLocal(const v1::PullPlan& proto, AgentPlan& plan) {
  plan.local_socket = proto.local_socket();
  if (plan.local_socket.empty()) return OkStatus();
  const bool is_path = plan.local_socket.starts_with('/') && CleanText(plan.local_socket) == plan.local_socket;
  if (!is_path) return Broken(proto, "names a local socket that is no absolute path");
  LS_ASSIGN_OR_RETURN(plan.local_ticket, ReadId<Ticket>(proto.local_ticket()));
  return OkStatus();
}

}  // namespace

Result<AgentPlan> ReadPlan(const v1::PullPlan& proto, const Layout& layout, const VersionRef& held,
                           const Control& control) {
  AgentPlan read;
  LS_ASSIGN_OR_RETURN(read.plan, ReadCommon(proto));
  Plan& plan = read.plan;
  switch (proto.mode()) {
    case v1::PULL_MODE_UP_TO_DATE:
      if (plan.target != held)
        return Broken(proto, Cat("says up to date, but its target is version ", plan.target.version));
      return read;
    case v1::PULL_MODE_FULL:
      if (proto.steps_size() > 0) return Broken(proto, "is full but has delta steps");
      plan.full = true;
      break;
    case v1::PULL_MODE_DELTA:
    case v1::PULL_MODE_CHAIN:
      if (held.nothing() || plan.base != held || plan.target.run != held.run) {
        return Broken(proto, Cat("starts from version ", plan.base.version, ", which this receiver does not hold"));
      }
      if (proto.mode() == v1::PULL_MODE_DELTA && proto.steps_size() != 1) {
        return Broken(proto, Cat("is one delta but has ", proto.steps_size(), " steps"));
      }
      LS_RETURN_IF_ERROR(ReadSteps(proto, *layout, plan));
      break;
    default:
      return Broken(proto, Cat("has mode ", static_cast<int>(proto.mode()), ", which this receiver does not know"));
  }
  LS_ASSIGN_OR_RETURN(read.lanes, ReadLanes(proto, layout, control));
  LS_RETURN_IF_ERROR(ReadLocal(proto, read));
  return read;
}

Result<pull::LanePeer> ReadStandingPlan(const v1::PullPlan& proto, const Layout& layout, const Control& control) {
  if (proto.mode() != v1::PULL_MODE_STANDING) return Broken(proto, "is of no standing pull");
  if (proto.pull_id() == 0) return Broken(proto, "has no id");
  return ReadLanes(proto, layout, control);
}

Result<Plan> ReadCatchUp(const v1::PullPlan& proto, const model::ModelLayout& layout, const Plan& full,
                         Version oldest) {
  LS_ASSIGN_OR_RETURN(Plan plan, ReadCommon(proto));
  if (plan.target.run != full.target.run) return Broken(proto, "catches up with another run");
  plan.full = true;
  plan.transfer = full.transfer;
  plan.base = {full.target.run, oldest};
  LS_RETURN_IF_ERROR(ReadSteps(proto, layout, plan));
  return plan;
}

}  // namespace lockstep::origin

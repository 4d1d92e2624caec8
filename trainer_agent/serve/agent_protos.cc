#include "trainer_agent/serve/agent_protos.h"

#include <chrono>

#include "common/base/text.h"
#include "common/peer/peer.h"
#include "common/rpc/status_mapping.h"

namespace lockstep::serve {
namespace {

// An empty id, as protos leave it when it is not set, is the zero one.
template <typename Id>
Result<Id> IdOf(const std::string& bytes) {
  if (bytes.empty()) return Id{};
  const auto raw = Bytes16(bytes);
  if (!raw.ok()) return Status(ErrorCode::kBadData, raw.status().message());
  return Id{*raw};
}

uint64_t SecondsSince(ReceiverReport::Clock::time_point time) {
  const auto ago = ReceiverReport::Clock::now() - time;
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(ago).count());
}

}  // namespace

Result<VersionRef> FromProto(const v1::VersionRef& held) {
  LS_ASSIGN_OR_RETURN(const auto run, IdOf<RunId>(held.run()));
  return VersionRef{run, held.version()};
}

Result<PullRequest> FromProto(const v1::OpenPullRequest& request, const std::string& owner) {
  PullRequest wanted{.model = request.model(),
                     .receiver = request.receiver(),
                     .owner = owner,
                     .lanes = request.lanes_wanted(),
                     .force_full = request.force_full(),
                     .standing = request.standing()};
  LS_ASSIGN_OR_RETURN(wanted.held, FromProto(request.held()));
  LS_ASSIGN_OR_RETURN(wanted.held_digest, IdOf<ManifestDigest>(request.held_digest()));
  LS_ASSIGN_OR_RETURN(wanted.layout, IdOf<LayoutDigest>(request.layout_digest()));
  LS_RETURN_IF_ERROR(peer::CheckPeer("trainer_agent", request.peer()));
  return wanted;
}

void ToProto(const VersionRef& held, v1::VersionRef* out) {
  out->set_run(ToBytes(held.run));
  out->set_version(held.version);
}

void ToProto(const PullPlan& plan, const LaneOffer& lanes, v1::PullPlan* out) {
  out->set_pull_id(plan.pull_id);
  out->set_mode(plan.mode);
  ToProto(plan.base, out->mutable_base());
  ToProto(plan.target, out->mutable_target());
  out->set_target_digest(ToBytes(plan.target_digest));
  out->set_committed_unix_ns(plan.committed_unix_ns);
  out->set_label(plan.label);
  out->set_payload_bytes(plan.payload_bytes);
  out->set_lane_address(lanes.address);
  out->set_lanes_encrypted(lanes.encrypted);
  for (const Ticket& ticket : plan.tickets) out->add_tickets(ToBytes(ticket));
  uint64_t changed_elements = 0;
  for (const PlannedStep& planned : plan.steps) {
    const payload::PayloadHeader& header = planned.payload->header();
    v1::DeltaStep* step = out->add_steps();
    step->set_payload_id(planned.payload_id);
    step->set_base(header.base);
    step->set_target(header.target);
    step->set_target_digest(ToBytes(header.target_digest));
    step->set_entries(header.entries);
    step->set_data_bytes(header.data_bytes);
    step->set_changed_elements(header.changed_elements);
    changed_elements += header.changed_elements;
  }
  out->set_changed_elements(changed_elements);
}

void ToProto(const payload::Payload& payload, v1::RetainedDelta* out) {
  const payload::PayloadHeader& header = payload.header();
  out->set_base(header.base);
  out->set_target(header.target);
  out->set_payload_bytes(header.data_bytes);
  out->set_changed_elements(header.changed_elements);
  out->set_changed_blocks(header.entries);
}

void ToProto(const ReceiverReport& report, v1::ReceiverState* out) {
  out->set_receiver(report.receiver.name);
  out->set_identity(report.receiver.owner);
  out->set_instance(report.receiver.instance);
  ToProto(report.held, out->mutable_held());
  out->set_last_outcome(report.outcome);
  out->set_last_error(report.last_error);
  out->set_served_version(report.served.version);
  out->set_seconds_ago(SecondsSince(report.at));
  out->set_presence(static_cast<v1::ReceiverPresence>(report.presence));
  if (report.presence == Presence::kGone) out->set_gone_seconds(SecondsSince(report.gone_at));
  out->set_name_shared(report.name_shared);
  for (const EngineReport& engine : report.engines) {
    v1::EngineServed& served = *out->add_engines();
    served.set_name(engine.name);
    ToProto(engine.served, served.mutable_served());
    served.set_last_error(engine.last_error);
  }
}

}  // namespace lockstep::serve

// Between the messages of proto/lockstep/v1/agent.proto and the types of the store and the pull table.
#pragma once

#include <string>

#include "proto/lockstep/v1/agent.pb.h"
#include "trainer_agent/serve/pull_plan.h"
#include "trainer_agent/serve/receiver_reports.h"

namespace lockstep::serve {

// kBadData: an id of another length than 16 bytes; an empty one is the zero id. kProtocol: a receiver that
// speaks another protocol. `owner` is the caller.
Result<VersionRef> FromProto(const v1::VersionRef& held);
Result<PullRequest> FromProto(const v1::OpenPullRequest& request, const std::string& owner = "");

void ToProto(const VersionRef& held, v1::VersionRef* out);
void ToProto(const PullPlan& plan, const LaneOffer& lanes, v1::PullPlan* out);
void ToProto(const payload::Payload& payload, v1::RetainedDelta* out);
void ToProto(const ReceiverReport& report, v1::ReceiverState* out);

}  // namespace lockstep::serve

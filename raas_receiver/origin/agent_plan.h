// The agent's pull plan, checked: from here on its numbers can be trusted to be within the layout and to add up. For
// AgentOrigin.
#pragma once

#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "proto/lockstep/v1/agent.pb.h"
#include "raas_receiver/origin/agent_client.h"
#include "raas_receiver/origin/origin.h"
#include "raas_receiver/pull/lane_peer.h"

namespace lockstep::origin {

// A pull that an agent grants: the plan, and the lanes and socket to fetch it by.
struct AgentPlan {
  Plan plan;
  pull::LanePeer lanes;      // none where the receiver is up to date
  std::string local_socket;  // of the agent, on its host; empty: it has none
  Ticket local_ticket;
};

// The plan that came over `control` for a receiver that reported that it holds `held`. kProtocol names the rule that it
// breaks.
Result<AgentPlan> ReadPlan(const v1::PullPlan& proto, const Layout& layout, const VersionRef& held,
                           const Control& control);

// The plan of a standing pull: its lanes. kProtocol names the rule that it breaks.
Result<pull::LanePeer> ReadStandingPlan(const v1::PullPlan& proto, const Layout& layout, const Control& control);

// The answer to CatchUp(oldest) within a full pull planned as `full`: its plan, with steps, on the lanes that are open.
Result<Plan> ReadCatchUp(const v1::PullPlan& proto, const model::ModelLayout& layout, const Plan& full, Version oldest);

}  // namespace lockstep::origin

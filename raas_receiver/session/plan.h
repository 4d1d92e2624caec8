// The agent's pull plan, checked: from here on its numbers can be trusted to be within the layout and to add up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "proto/lockstep/v1/agent.pb.h"
#include "raas_receiver/pull/block_source.h"
#include "raas_receiver/pull/lane_peer.h"
#include "raas_receiver/session/agent_client.h"

namespace lockstep::session {

using Layout = std::shared_ptr<const model::ModelLayout>;

struct Plan {
  uint64_t pull_id = 0;
  v1::PullMode mode = v1::PULL_MODE_UNSPECIFIED;
  Held base;
  Held target;
  ManifestDigest target_digest;
  std::vector<pull::DeltaStep> steps;
  pull::LanePeer lanes;
  std::string local_socket;  // of the agent, on its host; empty: it has none
  Ticket local_ticket;
  int64_t committed_unix_ns = 0;
  std::string label;  // of the target
  uint64_t changed_elements = 0;
};

// "full", "delta", "chain", "up_to_date".
std::string_view ModeName(v1::PullMode mode);

// The plan that came over `control` for a receiver that reported that it holds `held`. kProtocol names the rule that it
// breaks.
Result<Plan> ReadPlan(const v1::PullPlan& proto, const Layout& layout, const Held& held, const Control& control);

// The answer to OpenLive. kProtocol names the rule that it breaks.
Result<pull::LanePeer> ReadLivePlan(const v1::LivePlan& proto, const Layout& layout, const Control& control);

// The answer to CatchUp(oldest) within a full pull planned as `full`: steps only, on the lanes that are open.
Result<Plan> ReadCatchUp(const v1::PullPlan& proto, const model::ModelLayout& layout, const Plan& full, Version oldest);

}  // namespace lockstep::session

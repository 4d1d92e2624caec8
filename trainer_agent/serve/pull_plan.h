// PullRequest: what a receiver asks for. PullPlan: what the agent grants.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/manifest.h"
#include "common/payload/payload.h"
#include "proto/lockstep/v1/agent.pb.h"

namespace lockstep::serve {

struct PullRequest {
  std::string model;
  std::string receiver;
  std::string owner = {};  // the peer's identity (common/access/identity.h)
  VersionRef held;
  ManifestDigest held_digest;
  LayoutDigest layout;
  uint32_t lanes = 1;
  bool force_full = false;
  bool standing = false;                 // for the next deltas, while they are made: nothing is said of what is held
  std::function<Status()> allowed = {};  // why its owner may not have the model, asked now and then; null: it may
};

// How the lanes of all plans are reached.
struct LaneOffer {
  std::string address;     // host:port; an empty host means the control channel's
  bool encrypted = false;  // they are TLS, or none
};

struct PlannedStep {
  uint64_t payload_id = 0;
  std::shared_ptr<const payload::Payload> payload;
};

struct PullPlan {
  uint64_t pull_id = 0;                          // 0 when up to date: nothing was opened
  v1::PullMode mode = v1::PULL_MODE_UP_TO_DATE;  // a standing one has tickets and nothing else
  VersionRef base;
  VersionRef target;
  ManifestDigest target_digest;
  int64_t committed_unix_ns = 0;
  std::string label = {};  // of the target
  std::vector<PlannedStep> steps;
  uint64_t payload_bytes = 0;
  std::vector<Ticket> tickets;
  Ticket local_ticket;  // for a connection on this host (local_server.h)
};

}  // namespace lockstep::serve

// What receivers ask for, and what they are granted.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/manifest.h"
#include "common/payload/payload.h"

namespace lockstep::serve {

struct PullRequest {
  std::string model;
  std::string receiver;
  Held held;
  ManifestDigest held_digest;
  LayoutDigest layout;
  uint32_t lanes = 1;
  bool force_full = false;
  uint64_t link_bytes_per_s = 0;  // what its lanes last carried; 0: not known
};

// For the next deltas, while they are made.
struct LiveRequest {
  std::string model;
  std::string receiver;
  LayoutDigest layout;
  uint32_t lanes = 1;
  uint64_t link_bytes_per_s = 0;
};

enum class PlanMode { kUpToDate, kFull, kDelta, kChain, kFolded };

// As logs have it.
constexpr std::string_view NameOf(PlanMode mode) {
  constexpr std::string_view kNames[] = {"up_to_date", "full", "delta", "chain", "folded"};
  return kNames[static_cast<size_t>(mode)];
}

struct PlannedStep {
  uint64_t payload_id = 0;
  std::shared_ptr<const payload::Payload> payload;
};

struct PullPlan {
  uint64_t pull_id = 0;  // 0 for kUpToDate: nothing was opened
  PlanMode mode = PlanMode::kUpToDate;
  Held base;
  Held target;
  ManifestDigest target_digest;
  int64_t committed_unix_ns = 0;
  std::vector<PlannedStep> steps;
  uint64_t payload_bytes = 0;
  std::vector<Ticket> tickets;
  Ticket local_ticket;                                     // for a connection on this host (local_server.h)
  payload::CodecLevel level = payload::CodecLevel::kFast;  // of the steps
};

struct LivePlan {
  uint64_t pull_id = 0;
  std::vector<Ticket> tickets;
};

}  // namespace lockstep::serve

// What the two ends of lanes can do, as features of the peers that they are (common/peer/peer.h).
#pragma once

#include <string_view>

#include "common/base/status.h"
#include "common/peer/peer.h"

namespace lockstep::wire {

// Lanes can be encrypted.
inline constexpr std::string_view kLaneTls = "lane-tls";

// This release of `program`, an end of lanes.
peer::Peer Self(std::string_view program);

// The peer that `line` names, when `self` has a protocol in common with it. Errors as ParsePeer's and CheckPeer's.
Result<peer::Peer> MeetPeer(const peer::Peer& self, std::string_view line);

}  // namespace lockstep::wire

// Peer: how a program of Lockstep names itself to another before they rely on each other: name, release, protocol. One
// line of text says it, the same on gRPC, on the rank socket and in an engine rank's ATTACH:
//
//   trainer_agent/0.2.0 protocol=1
//
// A protocol is everything that two programs have to agree on without asking: one number for all formats, raised when
// one of them changes. Programs work together when their numbers are equal (docs/howto/upgrades.md). A reader passes
// over words behind the number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace lockstep::peer {

// The protocol that this build speaks: protocol.cc has the number.
extern const uint32_t kProtocol;

// A line that a peer sends is no longer than this.
inline constexpr size_t kMaxPeerBytes = 4096;

struct Peer {
  std::string program;  // "trainer_agent"
  std::string release;  // "0.2.0"
  uint32_t protocol = 0;
};

// The line of this build's `program`.
std::string SelfLine(std::string_view program);

// The peer that `line` names. kProtocol for anything that is no such line, an empty one too.
Result<Peer> ParsePeer(std::string_view line);

// OK when the peer that `line` names speaks the protocol of this build's `program`. kProtocol: as ParsePeer; or both
// with their protocols, and which one to upgrade.
Status CheckPeer(std::string_view program, std::string_view line);

}  // namespace lockstep::peer

// Peer: what two programs of Lockstep say of themselves before they rely on each other: name, release, the protocols
// they speak, what they can do.
//
// It travels as one line of text, the same on gRPC, on the rank socket and in an engine rank's ATTACH:
//
//   trainer_agent/0.2.0 protocol=1-1 streaming local lane-tls
//
// A protocol is everything that two programs have to agree on without asking: one number for all formats, raised when
// one of them changes so that a peer of before would misread it. What can be added beside that is a feature: a word
// that a peer which does not know it passes over. docs/howto/upgrades.md has the policy.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace lockstep::peer {

// What this build speaks: protocol.cc has the numbers.
extern const uint32_t kOldestProtocol;
extern const uint32_t kNewestProtocol;

// A line that a peer sends is no longer than this.
inline constexpr size_t kMaxPeerBytes = 4096;

struct Peer {
  std::string program;  // "trainer_agent"
  std::string release;  // "0.2.0"
  uint32_t oldest_protocol = kOldestProtocol;
  uint32_t newest_protocol = kNewestProtocol;
  std::vector<std::string> features;

  bool Can(std::string_view feature) const;
  // "trainer_agent 0.2.0"
  std::string name() const;
};

// This release of `program`.
Peer Self(std::string_view program, std::vector<std::string> features = {});

std::string ToLine(const Peer& peer);

// The peer that `line` names. kProtocol for anything that is no such line, an empty one too.
Result<Peer> ParsePeer(std::string_view line);

// OK when there is a protocol that both speak. kProtocol, naming both with their protocols and which one to upgrade.
Status CheckPeer(const Peer& self, const Peer& other);

}  // namespace lockstep::peer

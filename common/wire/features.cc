#include "common/wire/features.h"

#include <string>

namespace lockstep::wire {

peer::Peer Self(std::string_view program) {
  return peer::Self(program, {std::string(kLaneTls)});
}

Result<peer::Peer> MeetPeer(const peer::Peer& self, std::string_view line) {
  LS_ASSIGN_OR_RETURN(peer::Peer other, peer::ParsePeer(line));
  LS_RETURN_IF_ERROR(peer::CheckPeer(self, other));
  return other;
}

}  // namespace lockstep::wire

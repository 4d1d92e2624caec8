// What a later release has other than this one. The linker takes these names from here, and so not from
// common/base/version.cc and common/peer/protocol.cc.
#include "common/base/version.h"
#include "common/peer/peer.h"

namespace lockstep {

constinit const std::string_view kVersion = "99.0.0";

namespace peer {

constinit const uint32_t kProtocol = LOCKSTEP_PROTOCOL;

}  // namespace peer
}  // namespace lockstep

// The protocols of this release. They stand alone so that tests/release can link builds that speak another.
#include "common/peer/peer.h"

namespace lockstep::peer {

constinit const uint32_t kOldestProtocol = 1;
constinit const uint32_t kNewestProtocol = 1;

}  // namespace lockstep::peer

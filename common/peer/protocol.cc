// The protocol of this release. It stands alone so that tests/release can link builds that speak another.
#include "common/peer/peer.h"

namespace lockstep::peer {

constinit const uint32_t kProtocol = 1;

}  // namespace lockstep::peer

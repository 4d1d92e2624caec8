#include "common/telemetry/peer_log.h"

#include <unistd.h>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::telemetry {

void PeerLog::Failed(const os::UnixConnection& connection, const Status& status) {
  const auto known = connection.Peer();
  const os::PeerCredentials peer = known.ok() ? *known : os::PeerCredentials{};
  const bool stranger = peer.uid != 0 && peer.uid != ::geteuid();
  const uint64_t times = stranger ? strangers_.Count(Cat(peer.uid)) : 1;
  if (times == 0) return;
  LogWarn(event_, status, {{"path", path_}, {"pid", peer.pid}, {"uid", peer.uid}, {"times", times}});
}

}  // namespace lockstep::telemetry

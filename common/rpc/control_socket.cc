#include "common/rpc/control_socket.h"

#include <grpcpp/server_posix.h>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/log_limit.h"

namespace lockstep::rpc {

Result<std::unique_ptr<os::UnixServer>> StartControlSocket(const std::string& path, grpc::Server* server) {
  const auto limit = std::make_shared<telemetry::LogLimit>();
  const auto admit = [path, server, limit](os::UnixServer& sockets, os::UnixConnection& connection) {
    if (const Status known = os::CheckPeerUser(connection, "call a daemon"); !known.ok()) {
      const auto peer = connection.Peer();
      const uint64_t times = limit->Count(peer.ok() ? Cat("uid ", peer->uid) : "");
      if (times > 0) telemetry::LogWarn("control_peer_refused", known, {{"path", path}, {"times", times}});
      return;
    }
    grpc::AddInsecureChannelFromFd(server, sockets.Release(connection).TakeFd().Release());
  };
  const auto failed = [path, limit](const Status& status) {
    const uint64_t times = limit->Count("accept");
    if (times > 0) telemetry::LogWarn("control_accept_failed", status, {{"address", path}, {"times", times}});
  };
  return os::UnixServer::Start({.path = path}, admit, failed);
}

}  // namespace lockstep::rpc

#include "common/rpc/control_socket.h"

#include <grpcpp/server_posix.h>

#include "common/telemetry/log.h"
#include "common/telemetry/peer_log.h"

namespace lockstep::rpc {

Result<std::unique_ptr<os::UnixServer>> StartControlSocket(const std::string& path, grpc::Server* server) {
  const auto refused = std::make_shared<telemetry::PeerLog>("control_peer_refused", path);
  const auto admit = [server, refused](os::UnixServer& sockets, os::UnixConnection& connection) {
    const Status known = os::CheckPeerUser(connection, "call a daemon");
    if (!known.ok()) return refused->Failed(connection, known);
    grpc::AddInsecureChannelFromFd(server, sockets.Release(connection).TakeFd().Release());
  };
  const auto failed = [path](const Status& status) {
    telemetry::LogWarn("connection_refused", status, {{"address", path}});
  };
  return os::UnixServer::Start({.path = path, .option = "--control-socket"}, admit, failed);
}

}  // namespace lockstep::rpc

#include "common/rpc/control_socket.h"

#include <grpcpp/server_posix.h>

#include "common/telemetry/log.h"

namespace lockstep::rpc {

Result<std::unique_ptr<os::UnixServer>> StartControlSocket(const std::string& path, grpc::Server* server) {
  const auto admit = [path, server](os::UnixServer& sockets, os::UnixConnection& connection) {
    const Status known = os::CheckPeerUser(connection, "call a daemon");
    if (!known.ok()) return telemetry::LogWarn("control_peer_refused", known, {{"path", path}});
    grpc::AddInsecureChannelFromFd(server, sockets.Release(connection).TakeFd().Release());
  };
  return os::UnixServer::Start({.path = path}, admit,
                               [](const Status& status) { telemetry::LogWarn("control_accept_failed", status); });
}

}  // namespace lockstep::rpc

// The control plane on a unix socket, for this host: gRPC serves the connection, but which peer may have one is decided
// here, by the peer's uid, which gRPC does not tell.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/os/unix_server.h"

namespace lockstep::rpc {

// Admits processes of our own user and of root to all services of `server`; others are refused, and logged.
// kUnavailable when another process listens at `path`. REQUIRES `server` to outlive the socket; calls go on when the
// socket is gone.
Result<std::unique_ptr<os::UnixServer>> StartControlSocket(const std::string& path, grpc::Server* server);

}  // namespace lockstep::rpc

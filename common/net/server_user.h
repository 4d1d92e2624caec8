// Whose a server of this host is: any user may listen at a loopback port that is free.
#pragma once

#include <sys/types.h>

#include <asio/ip/tcp.hpp>

#include "common/base/status.h"

namespace lockstep::net {

// Of a connection from this process at `here` to `server`, both of this host: kPermission, unless all sockets that may
// have its other end are of `user`, ours or root's. kUnavailable: none listens there, in this network namespace.
Status CheckServerUser(const asio::ip::tcp::endpoint& here, const asio::ip::tcp::endpoint& server, uid_t user);

}  // namespace lockstep::net

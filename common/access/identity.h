// The caller: the names in its certificate, or that it is on this host.
#pragma once

#include <grpcpp/server_context.h>

#include <chrono>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/peer_certificate.h"

namespace lockstep::access {

struct Identity {
  std::string name;                // for messages, and for what belongs to it: all names, or where it calls from
  std::vector<std::string> names;  // URIs and DNS names of the certificate that was verified; none without one
  bool of_host = false;            // came by the control socket, which admits by uid: may do everything
  std::string serial;              // of the certificate: hexadecimal, lower case, no leading zeros
  std::chrono::system_clock::time_point valid_until = std::chrono::system_clock::time_point::max();

  bool authenticated() const { return of_host || !names.empty(); }
};

// Of a peer with these names in its certificate. One is not known by any of them, and has no role, where another's, put
// together, could read the same: a name with a comma, or what is no printing ASCII, or more than 2 KiB in all.
Identity IdentityOfNames(std::vector<std::string> names);

// Of the peer with this certificate, which was verified.
Identity IdentityOf(const rpc::PeerCertificate& certificate);

// The identity of the caller. In plaintext it has no names, nor when its connection has ended.
Identity IdentityOf(const grpc::ServerContextBase& context);

}  // namespace lockstep::access

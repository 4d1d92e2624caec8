// Client channels to our daemons.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "common/rpc/tls.h"

namespace lockstep::rpc {

// Connects to HOST:PORT, by TLS where it is configured, or to a socket of this host, unix:PATH, which is plaintext.
// Does so when first used and again, at most 2 s apart, whenever the connection is lost. Never goes through an HTTP
// proxy.
//
// A call fails at once (kUnavailable) where nobody listens. Where somebody does and is silent, while connecting or
// later, it waits for its own deadline (kDeadline), but no longer than 20 s: by then the peer counts as gone.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const TlsOptions& tls = {});

}  // namespace lockstep::rpc

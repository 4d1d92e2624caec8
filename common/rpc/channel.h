// Client channels to our daemons.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

namespace lockstep {

// Connects when first used and again, at most 2 s apart, whenever the connection is lost; a peer that stops answering
// is noticed within 20 s. Never goes through an HTTP proxy.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

}  // namespace lockstep

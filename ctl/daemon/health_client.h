// Asking a daemon for its health.
#pragma once

#include <grpcpp/channel.h>

#include <chrono>
#include <memory>
#include <string>

#include "common/base/status.h"

namespace lockstep::ctl {

// Whether `service` ("" for the server as a whole) is serving. kNotFound when the server does not know that name.
Result<bool> IsServing(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                       std::chrono::milliseconds timeout);

}  // namespace lockstep::ctl

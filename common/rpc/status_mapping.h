// The one place where Lockstep's errors become gRPC's and back.
#pragma once

#include <grpcpp/support/status.h>

#include "common/base/status.h"

namespace lockstep::rpc {

grpc::Status ToGrpc(const Status& status);

// Codes that several of ours share come back as the most general of these.
Status FromGrpc(const grpc::Status& status);

}  // namespace lockstep::rpc

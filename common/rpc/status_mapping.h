// The one place where Lockstep's errors become gRPC's and back.
#pragma once

#include <grpcpp/support/status.h>

#include "common/base/status.h"

namespace lockstep::rpc {

grpc::Status ToGrpc(const Status& status);

// Codes that several of ours share come back as the most general of these.
Status FromGrpc(const grpc::Status& status);

}  // namespace lockstep::rpc

// As LS_RETURN_IF_ERROR and LS_ASSIGN_OR_RETURN, in a handler of gRPC.
#define LS_GRPC_RETURN_IF_ERROR(expr)                                   \
  do {                                                                  \
    if (auto&& ls_outcome = (expr); !ls_outcome.ok()) {                 \
      return ::lockstep::rpc::ToGrpc(::lockstep::ToStatus(ls_outcome)); \
    }                                                                   \
  } while (false)
#define LS_GRPC_ASSIGN_OR_RETURN(lhs, expr) LS_GRPC_ASSIGN_OR_RETURN_INNER(LS_CONCAT(ls_result_, __LINE__), lhs, expr)
#define LS_GRPC_ASSIGN_OR_RETURN_INNER(result, lhs, expr)            \
  auto result = (expr);                                              \
  if (!result.ok()) return ::lockstep::rpc::ToGrpc(result.status()); \
  lhs = *std::move(result)

#include "common/rpc/status_mapping.h"

#include "common/base/text.h"

namespace lockstep::rpc {
namespace {

grpc::StatusCode ToGrpcCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return grpc::StatusCode::OK;
    case ErrorCode::kUsage:
    case ErrorCode::kConfig:
    case ErrorCode::kBadData:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case ErrorCode::kCorrupt:
      return grpc::StatusCode::DATA_LOSS;
    case ErrorCode::kProtocol:
      return grpc::StatusCode::UNIMPLEMENTED;
    case ErrorCode::kNotFound:
      return grpc::StatusCode::NOT_FOUND;
    case ErrorCode::kState:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case ErrorCode::kUnavailable:
      return grpc::StatusCode::UNAVAILABLE;
    case ErrorCode::kDeadline:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case ErrorCode::kAborted:
      return grpc::StatusCode::ABORTED;
    case ErrorCode::kCancelled:
      return grpc::StatusCode::CANCELLED;
    case ErrorCode::kPermission:
      return grpc::StatusCode::PERMISSION_DENIED;
    case ErrorCode::kResourceExhausted:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case ErrorCode::kIo:
      return grpc::StatusCode::UNKNOWN;
    case ErrorCode::kInternal:
      return grpc::StatusCode::INTERNAL;
  }
  return grpc::StatusCode::INTERNAL;
}

ErrorCode FromGrpcCode(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return ErrorCode::kOk;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::OUT_OF_RANGE:
      return ErrorCode::kBadData;
    case grpc::StatusCode::DATA_LOSS:
      return ErrorCode::kCorrupt;
    case grpc::StatusCode::UNIMPLEMENTED:
      return ErrorCode::kProtocol;
    case grpc::StatusCode::NOT_FOUND:
      return ErrorCode::kNotFound;
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::ALREADY_EXISTS:
      return ErrorCode::kState;
    case grpc::StatusCode::UNAVAILABLE:
      return ErrorCode::kUnavailable;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return ErrorCode::kDeadline;
    case grpc::StatusCode::ABORTED:
      return ErrorCode::kAborted;
    case grpc::StatusCode::CANCELLED:
      return ErrorCode::kCancelled;
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      return ErrorCode::kPermission;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return ErrorCode::kResourceExhausted;
    case grpc::StatusCode::UNKNOWN:
      return ErrorCode::kIo;
    default:
      return ErrorCode::kInternal;
  }
}

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  return status.ok() ? grpc::Status::OK : grpc::Status(ToGrpcCode(status.code()), status.message());
}

Status FromGrpc(const grpc::Status& status) {
  return status.ok() ? OkStatus() : Status(FromGrpcCode(status.error_code()), CleanText(status.error_message()));
}

}  // namespace lockstep::rpc

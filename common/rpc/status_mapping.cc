#include "common/rpc/status_mapping.h"

#include <algorithm>
#include <iterator>

#include "common/base/text.h"

namespace lockstep::rpc {
namespace {

struct Pair {
  ErrorCode ours;
  grpc::StatusCode theirs;
};

// The first pair that has a code says what it becomes; without one it is an internal error.
constexpr Pair kPairs[] = {
    {ErrorCode::kOk, grpc::StatusCode::OK},
    {ErrorCode::kBadData, grpc::StatusCode::INVALID_ARGUMENT},
    {ErrorCode::kUsage, grpc::StatusCode::INVALID_ARGUMENT},
    {ErrorCode::kConfig, grpc::StatusCode::INVALID_ARGUMENT},
    {ErrorCode::kCorrupt, grpc::StatusCode::DATA_LOSS},
    {ErrorCode::kProtocol, grpc::StatusCode::UNIMPLEMENTED},
    {ErrorCode::kNotFound, grpc::StatusCode::NOT_FOUND},
    {ErrorCode::kState, grpc::StatusCode::FAILED_PRECONDITION},
    {ErrorCode::kUnavailable, grpc::StatusCode::UNAVAILABLE},
    {ErrorCode::kDeadline, grpc::StatusCode::DEADLINE_EXCEEDED},
    {ErrorCode::kAborted, grpc::StatusCode::ABORTED},
    {ErrorCode::kCancelled, grpc::StatusCode::CANCELLED},
    {ErrorCode::kPermission, grpc::StatusCode::PERMISSION_DENIED},
    {ErrorCode::kResourceExhausted, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {ErrorCode::kIo, grpc::StatusCode::UNKNOWN},
    // Only gRPC has these.
    {ErrorCode::kBadData, grpc::StatusCode::OUT_OF_RANGE},
    {ErrorCode::kState, grpc::StatusCode::ALREADY_EXISTS},
    {ErrorCode::kPermission, grpc::StatusCode::UNAUTHENTICATED},
};

grpc::StatusCode ToGrpcCode(ErrorCode code) {
  const auto pair = std::ranges::find(kPairs, code, &Pair::ours);
  return pair == std::end(kPairs) ? grpc::StatusCode::INTERNAL : pair->theirs;
}

ErrorCode FromGrpcCode(grpc::StatusCode code) {
  const auto pair = std::ranges::find(kPairs, code, &Pair::theirs);
  return pair == std::end(kPairs) ? ErrorCode::kInternal : pair->ours;
}

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  return status.ok() ? grpc::Status::OK : grpc::Status(ToGrpcCode(status.code()), status.message());
}

Status FromGrpc(const grpc::Status& status) {
  return status.ok() ? OkStatus() : Status(FromGrpcCode(status.error_code()), CleanText(status.error_message()));
}

}  // namespace lockstep::rpc

#include "common/base/status.h"

#include <cerrno>
#include <cstring>

namespace lockstep {

std::string_view Label(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kUsage:
      return "usage";
    case ErrorCode::kConfig:
      return "config";
    case ErrorCode::kBadData:
      return "bad_data";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kProtocol:
      return "protocol";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kState:
      return "state";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kDeadline:
      return "deadline";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kPermission:
      return "permission";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "internal";
}

int ExitCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return 0;
    case ErrorCode::kUsage:
      return 64;
    case ErrorCode::kBadData:
    case ErrorCode::kCorrupt:
      return 65;
    case ErrorCode::kNotFound:
    case ErrorCode::kUnavailable:
      return 69;
    case ErrorCode::kInternal:
      return 70;
    case ErrorCode::kResourceExhausted:
      return 71;
    case ErrorCode::kIo:
      return 74;
    case ErrorCode::kState:
    case ErrorCode::kDeadline:
    case ErrorCode::kAborted:
    case ErrorCode::kCancelled:
      return 75;
    case ErrorCode::kProtocol:
      return 76;
    case ErrorCode::kPermission:
      return 77;
    case ErrorCode::kConfig:
      return 78;
  }
  return 70;
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return std::string(Label(code_)) + ": " + message_;
}

Status Status::WithContext(std::string_view where) const {
  if (ok()) return *this;
  return {code_, std::string(where) + ": " + message_};
}

Status ErrnoStatus(int error_number, std::string_view what) {
  std::string message = std::string(what) + ": " + std::strerror(error_number);
  switch (error_number) {
    case EACCES:
    case EPERM:
    case EROFS:
      return {ErrorCode::kPermission, std::move(message)};
    case ENOENT:
      return {ErrorCode::kNotFound, std::move(message)};
    case ENOSPC:
    case ENOMEM:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
      return {ErrorCode::kResourceExhausted, std::move(message)};
    case EADDRINUSE:
    case EADDRNOTAVAIL:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return {ErrorCode::kUnavailable, std::move(message)};
    case ETIMEDOUT:
    case EAGAIN:
      return {ErrorCode::kDeadline, std::move(message)};
    default:
      return {ErrorCode::kIo, std::move(message)};
  }
}

}  // namespace lockstep

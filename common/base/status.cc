#include "common/base/status.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

namespace lockstep {

namespace {

struct CodeRow {
  ErrorCode code;
  std::string_view label;
  int exit_code;
};

constexpr CodeRow kCodes[] = {
    {ErrorCode::kOk, "ok", 0},
    {ErrorCode::kUsage, "usage", 64},
    {ErrorCode::kConfig, "config", 78},
    {ErrorCode::kBadData, "bad_data", 65},
    {ErrorCode::kCorrupt, "corrupt", 65},
    {ErrorCode::kProtocol, "protocol", 76},
    {ErrorCode::kNotFound, "not_found", 69},
    {ErrorCode::kState, "state", 75},
    {ErrorCode::kUnavailable, "unavailable", 69},
    {ErrorCode::kDeadline, "deadline", 75},
    {ErrorCode::kAborted, "aborted", 75},
    {ErrorCode::kCancelled, "cancelled", 75},
    {ErrorCode::kPermission, "permission", 77},
    {ErrorCode::kResourceExhausted, "resource_exhausted", 71},
    {ErrorCode::kIo, "io", 74},
    {ErrorCode::kInternal, "internal", 70},  // and whatever is no code of ours
};

const CodeRow& RowOf(ErrorCode code) {
  return kCodes[std::min(static_cast<size_t>(code), std::size(kCodes) - 1)];
}

constexpr bool InOrder() {
  for (size_t i = 0; i < std::size(kCodes); ++i) {
    if (static_cast<size_t>(kCodes[i].code) != i) return false;
  }
  return std::size(kCodes) == static_cast<size_t>(ErrorCode::kInternal) + 1;
}
static_assert(InOrder(), "a code is found by its number");

}  // namespace

std::string_view Label(ErrorCode code) {
  return RowOf(code).label;
}

int ExitCode(ErrorCode code) {
  return RowOf(code).exit_code;
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return std::string(Label(code_)) + ": " + message_;
}

Status Status::WithContext(std::string_view where) const {
  const bool said = message_.starts_with(where) && message_.size() > where.size() &&
                    (message_[where.size()] == ':' || message_[where.size()] == ',');
  if (ok() || said) return *this;
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

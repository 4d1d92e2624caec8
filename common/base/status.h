// Status and Result<T>: how every fallible call of Lockstep answers.
//
// The shape is that of absl::Status, so its readers are at home; the type is our own because the export plugin lives in
// another program's process and must carry no abseil (docs/decisions/0001-own-status.md). ErrorCode is the one taxonomy
// of errors: common/rpc maps it to gRPC codes, ExitCode() to sysexits, Label() to log and metric labels.
//
// A message says what failed, where (model, run, version, block or tensor, peer) and what to do about it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

enum class ErrorCode : uint8_t {
  kOk = 0,
  kUsage,              // the command line is wrong
  kConfig,             // a configuration value or file is wrong
  kBadData,            // an argument, file or description breaks a rule
  kCorrupt,            // bytes differ from their checksum or digest
  kProtocol,           // a peer speaks another format or version, or breaks its rules
  kNotFound,           // no such model, run, version or block
  kState,              // right request, wrong moment: the state it needs is not there
  kUnavailable,        // a peer or port cannot be reached or used
  kDeadline,           // no answer in time; a timeout is a failure
  kAborted,            // aborted half-way because of another process; try again
  kCancelled,          // stopped half-way because it was asked to
  kPermission,         // not allowed
  kResourceExhausted,  // memory, disk, descriptors or a limit of ours
  kIo,                 // the operating system failed a read, write or other call
  kInternal,           // a bug in Lockstep
};

// Stable snake_case name for logs and metric labels.
std::string_view Label(ErrorCode code);

// The process exit status (sysexits.h) that a daemon or CLI ends with because of `code`.
int ExitCode(ErrorCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == ErrorCode::kOk; }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "corrupt: block 7 of model actor ..." or "ok".
  std::string ToString() const;

  // Returns this error with `where` before its message, unless the message begins with `where`. OK stays OK.
  Status WithContext(std::string_view where) const;

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
};

inline Status OkStatus() {
  return {};
}

// `what` failed with `error_number` (errno): "what: strerror", classed by the number.
Status ErrnoStatus(int error_number, std::string_view what);

// A T or the error that kept it from being made. REQUIRES ok() before value access.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit, as a plain return
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit; REQUIRES !status.ok()

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

inline const Status& ToStatus(const Status& status) {
  return status;
}
template <typename T>
const Status& ToStatus(const Result<T>& result) {
  return result.status();
}

}  // namespace lockstep

#define LS_CONCAT_INNER(a, b) a##b
#define LS_CONCAT(a, b) LS_CONCAT_INNER(a, b)

// Returns the error of `expr` (a Status or Result) from the calling function, if it has one.
#define LS_RETURN_IF_ERROR(expr)                                                               \
  do {                                                                                         \
    if (auto&& ls_outcome = (expr); !ls_outcome.ok()) return ::lockstep::ToStatus(ls_outcome); \
  } while (false)

// LS_ASSIGN_OR_RETURN(auto x, MakeX()): x, or the error returned from the calling function.
#define LS_ASSIGN_OR_RETURN(lhs, expr) LS_ASSIGN_OR_RETURN_INNER(LS_CONCAT(ls_result_, __LINE__), lhs, expr)
#define LS_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                              \
  if (!result.ok()) return result.status();          \
  lhs = *std::move(result)

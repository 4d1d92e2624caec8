// What both halves of the C ABI share: nothing is thrown past it, every failure leaves a code and a sentence.
#pragma once

#include <chrono>
#include <exception>
#include <new>
#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/text.h"
#include "common/model/layout.h"
#include "common/os/unix_socket.h"
#include "export_plugin/lockstep.h"

namespace lockstep::abi {

// The sentence of this thread's last failure without a handle.
std::string& ThreadError();

// Runs `body`, turning its error, and anything thrown below (bad_alloc), into a code and a sentence.
template <typename Body>
int Guarded(std::string& error, Body body) {
  Status status;
  try {
    status = body();
  } catch (const std::bad_alloc&) {
    status = Status(ErrorCode::kResourceExhausted, "out of memory");
  } catch (const std::exception& problem) {
    status = Status(ErrorCode::kInternal, problem.what());
  }
  error = status.message();
  return static_cast<int>(status.code());
}

// The same for what is asked of a handle; `what` is its name in messages.
template <typename Handle, typename Body>
int OnHandle(Handle* handle, std::string_view what, Body body) {
  if (handle != nullptr) return Guarded(handle->error, body);
  ThreadError() = Cat("the ", what, " handle is null");
  return LOCKSTEP_BAD_DATA;
}

inline Status CheckAbiVersion(uint32_t version) {
  if (version == LOCKSTEP_ABI_VERSION) return OkStatus();
  return {ErrorCode::kProtocol,
          Cat("built against ABI version ", version, "; this library has ", LOCKSTEP_ABI_VERSION)};
}

// The dtype of a lockstep_tensor or lockstep_local_tensor whose name, dtype and shape can be read; `what` it is.
template <typename Tensor>
Result<model::DType> CheckTensor(const Tensor& tensor, std::string_view what, size_t position) {
  if (tensor.name == nullptr || tensor.dtype == nullptr || (tensor.rank > 0 && tensor.shape == nullptr)) {
    return Status(ErrorCode::kBadData, Cat(what, " ", position, ": its name, dtype or shape is null"));
  }
  const model::DTypeInfo* dtype = model::FindDType(tensor.dtype);
  if (dtype == nullptr) {
    return Status(ErrorCode::kBadData, Cat(what, " \"", tensor.name, "\": unknown dtype \"", tensor.dtype,
                                           "\"; use the names of safetensors, such as BF16"));
  }
  if (tensor.rank <= model::kMaxTensorRank) return dtype->dtype;
  return Status(ErrorCode::kBadData, Cat(what, " \"", tensor.name, "\": rank ", tensor.rank, " is over the limit of ",
                                         model::kMaxTensorRank));
}

inline std::chrono::milliseconds Timeout(uint32_t given_ms, uint32_t default_ms) {
  return std::chrono::milliseconds(given_ms == 0 ? default_ms : given_ms);
}

// Empty for null.
inline os::Interrupted ConvertInterrupted(int (*interrupted)(void* context), void* context) {
  if (interrupted == nullptr) return {};
  return [interrupted, context] { return interrupted(context) != 0; };
}

// Zero, a new run, for null.
inline Result<RunId> ParseRun(const char* hex) {
  if (hex == nullptr) return RunId{};
  LS_ASSIGN_OR_RETURN(const auto run, HexDecode16(hex));
  return RunId{run};
}

inline std::string TextOrEmpty(const char* text) {
  return text == nullptr ? "" : text;
}

}  // namespace lockstep::abi

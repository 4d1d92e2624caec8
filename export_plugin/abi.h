// What both halves of the C ABI share: nothing is thrown past it, every failure leaves a code and a sentence.
#pragma once

#include <chrono>
#include <exception>
#include <new>
#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"
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

inline std::chrono::milliseconds Timeout(uint32_t given_ms, uint32_t default_ms) {
  return std::chrono::milliseconds(given_ms == 0 ? default_ms : given_ms);
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

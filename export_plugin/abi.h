// The edge of the C ABI: nothing is thrown past it, every failure leaves a code and a sentence.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "common/base/status.h"

namespace lockstep::abi {

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

inline std::string TextOrEmpty(const char* text) {
  return text == nullptr ? "" : text;
}

}  // namespace lockstep::abi

// The edge of the C ABI: nothing is thrown past it, every failure leaves a code and a sentence.
#pragma once

#include <bits/cxxabi_forced.h>  // <cxxabi.h> has another namespace abi

#include <exception>
#include <new>
#include <string>

#include "common/base/status.h"

namespace lockstep::abi {

// Runs `body`, turning its error, and anything thrown below (bad_alloc, what a callback throws), into a code and a
// sentence.
template <typename Body>
int Guarded(std::string& error, Body body) {
  Status status;
  try {
    status = body();
  } catch (const std::bad_alloc&) {
    status = Status(ErrorCode::kResourceExhausted, "out of memory");
  } catch (const std::exception& problem) {
    status = Status(ErrorCode::kInternal, problem.what());
  } catch (const __cxxabiv1::__forced_unwind&) {
    throw;  // a thread that ends, as Python's do in a callback at its end: it may not be kept
  } catch (...) {
    status = Status(ErrorCode::kInternal, "something was thrown that is no std::exception");
  }
  error = status.message();
  return static_cast<int>(status.code());
}

inline std::string TextOrEmpty(const char* text) {
  return text == nullptr ? "" : text;
}

}  // namespace lockstep::abi

// Benchmarks end at the first error, saying what it was.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/base/status.h"

namespace lockstep::bench {

[[noreturn]] inline void Fail(const Status& status) {
  std::fprintf(stderr, "benchmark: %s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T OrDie(Result<T> result) {
  if (!result.ok()) Fail(result.status());
  return *std::move(result);
}

inline void OrDie(const Status& status) {
  if (!status.ok()) Fail(status);
}

}  // namespace lockstep::bench

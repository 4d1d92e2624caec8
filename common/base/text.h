// Small text helpers for messages people read.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>

namespace lockstep {

// Concatenates its arguments as operator<< prints them.
template <typename... Args>
std::string Cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

// 1536 -> "1.5 KiB".
std::string HumanBytes(uint64_t bytes);

}  // namespace lockstep

// How large a model a benchmark measures: its own, or a smaller one where memory is short.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

namespace lockstep::bench {

// Memory that the machine can still give, files in shared memory counted; 0 where /proc does not say.
inline uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  uint64_t kibibytes = 0;
  for (std::string name; file >> name; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (name == "MemAvailable:" && file >> kibibytes) break;
  }
  return kibibytes << 10;
}

// The bytes of a model of which `copies` fit into memory: `wanted`, or as many as there are, which is then said on
// stderr. Ends the process with status 71 when that is too small for any figure.
inline uint64_t FittingBytes(uint64_t wanted, uint64_t copies) {
  constexpr uint64_t kRoom = uint64_t{1} << 30;  // for deltas and for others on the machine
  constexpr uint64_t kLeast = 8'000'000;
  const uint64_t available = AvailableMemory();
  const uint64_t fitting = available > kRoom ? (available - kRoom) / copies : 0;
  if (fitting >= wanted) return wanted;
  const bool enough = fitting >= kLeast;
  std::fprintf(stderr,
               "benchmark: %.2f GB of memory are available, too little for %lu copies of a model of %.2f GB: %s\n",
               static_cast<double>(available) / 1e9, copies, static_cast<double>(wanted) / 1e9,
               enough ? "measuring a smaller one" : "nothing is measured");
  if (!enough) std::exit(71);
  return fitting;
}

}  // namespace lockstep::bench

// The sum of sum.h, as FORMAT.md of the exchange has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::kernels::cuda {

inline uint64_t FormatSum(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t first = 0; first < bytes.size(); first += 8) {
    uint64_t x = (first / 8 + 1) * 0x9E3779B97F4A7C15;
    for (size_t byte = 0; byte < 8 && first + byte < bytes.size(); ++byte) {
      x ^= static_cast<uint64_t>(bytes[first + byte]) << 8 * byte;
    }
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93;
    sum += x ^ (x >> 32);
  }
  return sum;
}

}  // namespace lockstep::kernels::cuda

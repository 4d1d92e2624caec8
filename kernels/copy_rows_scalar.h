// The oracle: the plainest loops that keep the contract of copy_rows.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep::kernels::scalar {

inline uint16_t BF16OfF32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fff'ffff) > 0x7f80'0000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float F32OfBF16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

inline void CopyRow(std::byte* dst, const std::byte* src, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; ++i) dst[i] = src[i];
}

inline void ConvertRowF32ToBF16(std::byte* dst, const std::byte* src, uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) {
    float value;
    std::memcpy(&value, src + 4 * i, 4);
    const uint16_t rounded = BF16OfF32(value);
    std::memcpy(dst + 2 * i, &rounded, 2);
  }
}

inline void ConvertRowBF16ToF32(std::byte* dst, const std::byte* src, uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) {
    uint16_t value;
    std::memcpy(&value, src + 2 * i, 2);
    const float widened = F32OfBF16(value);
    std::memcpy(dst + 4 * i, &widened, 4);
  }
}

}  // namespace lockstep::kernels::scalar

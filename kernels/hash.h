// The one hash of the project: xxh3, 64 bits for blocks and frames, 128 bits for names of layouts and versions.
// The hash guards against accidents, not against an adversary that chooses both inputs: peers are authenticated apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

uint64_t Hash64(std::span<const std::byte> bytes);
std::array<uint8_t, 16> Hash128(std::span<const std::byte> bytes);  // canonical (big-endian) byte order

inline uint64_t Hash64(const void* data, size_t bytes) {
  return Hash64({static_cast<const std::byte*>(data), bytes});
}

}  // namespace lockstep

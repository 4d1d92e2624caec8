// Small numbers in as few bits as they need: what the low parts of a delta's gaps and steps are stored as.
//
// A stream of `count` numbers of `bits` each is bits / 8 planes of bytes (the lowest bytes of all numbers, then the
// next ones), then the remaining bits of all numbers, packed: number i has the bits from i · (bits mod 8) on, low ones
// first, low bytes first. What is left of the last byte is zero.
//
// Plain pointers, no SIMD types; they need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels {

// Both may be written in words: packing touches up to this many bytes after the stream, which must be writable.
inline constexpr size_t kPackSlack = 8;

constexpr size_t PackedBytes(size_t count, uint32_t bits) {
  return count * (bits / 8) + (count * (bits % 8) + 7) / 8;
}

// Writes PackedBytes(count, bits) bytes to `out`: the low `bits` of each number. REQUIRES bits <= 32 or 64, and
// kPackSlack writable bytes behind the stream.
void PackBits(const uint32_t* numbers, size_t count, uint32_t bits, uint8_t* out);
void PackBits(const uint64_t* numbers, size_t count, uint32_t bits, uint8_t* out);

// The inverse. Reads PackedBytes(count, bits) bytes and none after them. With bits == 0 all numbers are zero.
void UnpackBits(const uint8_t* in, size_t count, uint32_t bits, uint32_t* numbers);
void UnpackBits(const uint8_t* in, size_t count, uint32_t bits, uint64_t* numbers);

}  // namespace lockstep::kernels

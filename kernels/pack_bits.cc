#include "kernels/pack_bits.h"

#include <algorithm>
#include <cstring>

namespace lockstep::kernels {
namespace {

// Eight numbers are packed at a time, as the eight bytes of one word: neighbours are pushed together in three steps,
// bytes to pairs, pairs to fours, fours to eight. That is a dozen operations for eight numbers of any width, on every
// machine; pext and pdep would save half of them and are slow on many processors.
constexpr uint64_t kBytes = 0x00ff'00ff'00ff'00ff;
constexpr uint64_t kPairs = 0x0000'ffff'0000'ffff;
constexpr uint64_t kFours = 0x0000'0000'ffff'ffff;

uint64_t PushTogether(uint64_t bytes, uint32_t bits) {
  const uint64_t pairs = (bytes & kBytes) | (bytes >> 8 & kBytes) << bits;
  const uint64_t fours = (pairs & kPairs) | (pairs >> 16 & kPairs) << (2 * bits);
  return (fours & kFours) | (fours >> 32) << (4 * bits);
}

uint64_t PullApart(uint64_t packed, uint32_t bits) {
  const uint64_t two = (uint64_t{1} << (4 * bits)) - 1;
  const uint64_t four = ((uint64_t{1} << (2 * bits)) - 1) * (1 | uint64_t{1} << 32);
  const uint64_t eight = ((uint64_t{1} << bits) - 1) * 0x0001'0001'0001'0001;
  const uint64_t fours = (packed & two) | (packed >> (4 * bits) & two) << 32;
  const uint64_t pairs = (fours & four) | (fours >> (2 * bits) & four) << 16;
  return (pairs & eight) | (pairs >> bits & eight) << 8;
}

// A byte of each number, so that the loops over words have nothing but words to do.
constexpr size_t kChunk = 256;

template <typename T>
void TakeBytes(const T* numbers, size_t count, uint32_t shift, uint8_t mask, uint8_t* bytes) {
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(numbers[i] >> shift) & mask;
}

template <typename T>
void Pack(const T* numbers, size_t count, uint32_t bits, uint8_t* out) {
  uint32_t shift = 0;
  for (; shift + 8 <= bits; shift += 8, out += count) TakeBytes(numbers, count, shift, 0xff, out);
  const uint32_t rest = bits - shift;
  if (rest == 0) return;
  uint8_t bytes[kChunk];
  const auto mask = static_cast<uint8_t>((1u << rest) - 1);
  for (size_t at = 0; at < count; at += kChunk) {
    const size_t some = std::min(kChunk, count - at);
    TakeBytes(numbers + at, some, shift, mask, bytes);
    std::fill(bytes + some, bytes + (some + 7) / 8 * 8, uint8_t{0});
    for (size_t i = 0; i < some; i += 8, out += rest) {
      uint64_t word;
      std::memcpy(&word, bytes + i, sizeof word);
      word = PushTogether(word, rest);
      std::memcpy(out, &word, sizeof word);
    }
  }
}

template <typename T>
void Unpack(const uint8_t* in, size_t count, uint32_t bits, T* numbers) {
  std::fill(numbers, numbers + count, T{0});
  uint32_t shift = 0;
  for (; shift + 8 <= bits; shift += 8, in += count) {
    for (size_t i = 0; i < count; ++i) numbers[i] |= static_cast<T>(static_cast<T>(in[i]) << shift);
  }
  const uint32_t rest = bits - shift;
  if (rest == 0) return;
  const uint8_t* const end = in + (count * rest + 7) / 8;
  uint8_t bytes[kChunk];
  for (size_t at = 0; at < count; at += kChunk) {
    const size_t some = std::min(kChunk, count - at);
    for (size_t i = 0; i < some; i += 8, in += rest) {
      uint64_t word = 0;
      if (end - in >= 8) {
        std::memcpy(&word, in, sizeof word);
      } else {
        std::memcpy(&word, in, static_cast<size_t>(end - in));
      }
      word = PullApart(word, rest);
      std::memcpy(bytes + i, &word, sizeof word);
    }
    for (size_t i = 0; i < some; ++i) numbers[at + i] |= static_cast<T>(static_cast<T>(bytes[i]) << shift);
  }
}

}  // namespace

void PackBits(const uint32_t* numbers, size_t count, uint32_t bits, uint8_t* out) {
  Pack(numbers, count, bits, out);
}

void PackBits(const uint64_t* numbers, size_t count, uint32_t bits, uint8_t* out) {
  Pack(numbers, count, bits, out);
}

void UnpackBits(const uint8_t* in, size_t count, uint32_t bits, uint32_t* numbers) {
  Unpack(in, count, bits, numbers);
}

void UnpackBits(const uint8_t* in, size_t count, uint32_t bits, uint64_t* numbers) {
  Unpack(in, count, bits, numbers);
}

}  // namespace lockstep::kernels

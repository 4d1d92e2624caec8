#include "raas_receiver/engine/drivers/tensor_digests.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/base/ids.h"

namespace lockstep::engine {
namespace {

constexpr uint32_t kSeed1 = 0x243f6a88;
constexpr uint32_t kSeed2 = (kSeed1 * 0x9e3779b1) ^ 0xdeadbeef;
constexpr uint64_t kTileWords = 8192;

uint32_t Mix32(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6b;
  x = (x ^ (x >> 13)) * 0xc2b2ae35;
  return x ^ (x >> 16);
}

uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Words [begin, end); the last one is filled up with zeros.
uint64_t TileHash(ByteView bytes, uint64_t begin, uint64_t end, uint32_t padded_bytes) {
  uint32_t high = 0, low = 0;
  for (uint64_t i = begin; i < end; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, bytes.data() + i * sizeof word, std::min(sizeof word, bytes.size() - i * sizeof word));
    const auto at = static_cast<uint32_t>(i);
    high += Mix32(word ^ (at * 0x27d4eb2d + kSeed1) ^ std::rotl(at, 15));
    low += Mix32(word ^ (at * 0x165667b1 + kSeed2) ^ std::rotl(at, 13));
  }
  return (uint64_t{Mix32(high ^ padded_bytes)} << 32) | Mix32(low ^ padded_bytes);
}

}  // namespace

std::string Sha256Hex(ByteView bytes) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return HexEncode(digest);
}

std::string SglangGpuHash(ByteView bytes) {
  const uint64_t words = (bytes.size() + 3) / 4;
  uint64_t sum = 0;
  for (uint64_t begin = 0; begin < words; begin += kTileWords) {
    sum += TileHash(bytes, begin, std::min(begin + kTileWords, words), static_cast<uint32_t>(words * 4));
  }
  uint64_t hash = Mix64(sum);
  std::array<uint8_t, sizeof hash> digits{};
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit, hash >>= 8) *digit = static_cast<uint8_t>(hash);
  return HexEncode(digits);
}

}  // namespace lockstep::engine

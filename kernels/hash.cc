#include "kernels/hash.h"

#include "kernels/hash_targets.h"

// The distribution's library hashes with what every machine of the architecture has. Of the header's inner loops, these
// are compiled too, each function for its instruction set, and chosen when the program runs.
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of its own AVX-512 intrinsics (gcc.gnu.org/PR105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#define XXH_X86DISPATCH 1
#define XXH_DISPATCH_AVX2 1
#define XXH_DISPATCH_AVX512 1
#define XXH_TARGET_AVX2 __attribute__((target("avx2")))
#define XXH_TARGET_AVX512 __attribute__((target("avx512f")))
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

uint64_t HashBaseline(const void* data, size_t bytes) {
  return XXH3_64bits(data, bytes);
}

#if defined(__x86_64__)

XXH_TARGET_AVX2 uint64_t HashAvx2(const void* data, size_t bytes) {
  return XXH3_hashLong_64b_internal(data, bytes, XXH3_kSecret, sizeof XXH3_kSecret, XXH3_accumulate_512_avx2,
                                    XXH3_scrambleAcc_avx2);
}

XXH_TARGET_AVX512 uint64_t HashAvx512(const void* data, size_t bytes) {
  return XXH3_hashLong_64b_internal(data, bytes, XXH3_kSecret, sizeof XXH3_kSecret, XXH3_accumulate_512_avx512,
                                    XXH3_scrambleAcc_avx512);
}

#endif

}  // namespace

std::span<const LongHashTarget> LongHashTargets() {
  static_assert(kShortHashBytes == XXH3_MIDSIZE_MAX);
  static const LongHashTarget targets[] = {
#if defined(__x86_64__)
    {"AVX-512", __builtin_cpu_supports("avx512f") != 0, HashAvx512},
    {"AVX2", __builtin_cpu_supports("avx2") != 0, HashAvx2},
#endif
    {"baseline", true, HashBaseline},
  };
  return targets;
}

uint64_t Hash64(std::span<const std::byte> bytes) {
  if (bytes.size() <= kShortHashBytes) return XXH3_64bits(bytes.data(), bytes.size());
  static const auto best = std::ranges::find_if(LongHashTargets(), &LongHashTarget::supported);
  return best->hash(bytes.data(), bytes.size());
}

std::array<uint8_t, 16> Hash128(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::array<uint8_t, 16> digest;
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

}  // namespace lockstep

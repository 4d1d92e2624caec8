// Loops that only read memory, with the widest loads that the machine has: the floor of every pass of delta_pair.h.
#include <cstring>

#include "tests/bench/delta/delta_pair.h"

namespace lockstep::bench {
namespace {

// Four loads in flight per turn and no more work than an instruction for each: what remains is memory. How much was
// read is returned. `Vector` is as wide as a register of the caller's instruction set.
template <typename Vector>
[[gnu::always_inline]] inline size_t ReadStreams(const std::byte* a, const std::byte* b, size_t bytes, uint64_t& any) {
  const auto add = [](const std::byte* from, Vector& to) {
    Vector loaded;
    std::memcpy(&loaded, from, sizeof loaded);
    to |= loaded;
  };
  Vector x{}, y{}, z{}, w{};
  size_t i = 0;
  for (; i + 2 * sizeof(Vector) <= bytes; i += 2 * sizeof(Vector)) {
    add(a + i, x);
    add(b + i, y);
    add(a + i + sizeof(Vector), z);
    add(b + i + sizeof(Vector), w);
  }
  x |= y | z | w;
  for (size_t lane = 0; lane < sizeof(Vector) / 8; ++lane) any |= x[lane];
  return i;
}

using Vector16 [[gnu::vector_size(16)]] = uint64_t;
#if defined(__x86_64__)
using Vector32 [[gnu::vector_size(32)]] = uint64_t;
using Vector64 [[gnu::vector_size(64)]] = uint64_t;

[[gnu::target("avx512f")]] size_t Read512(const std::byte* a, const std::byte* b, size_t bytes, uint64_t& any) {
  return ReadStreams<Vector64>(a, b, bytes, any);
}

[[gnu::target("avx2")]] size_t Read256(const std::byte* a, const std::byte* b, size_t bytes, uint64_t& any) {
  return ReadStreams<Vector32>(a, b, bytes, any);
}
#endif

size_t ReadWide(const std::byte* a, const std::byte* b, size_t bytes, [[maybe_unused]] Loads loads, uint64_t& any) {
#if defined(__x86_64__)
  if (loads == Loads::kWide64 && __builtin_cpu_supports("avx512f")) return Read512(a, b, bytes, any);
  if (__builtin_cpu_supports("avx2")) return Read256(a, b, bytes, any);
#endif
  return ReadStreams<Vector16>(a, b, bytes, any);
}

}  // namespace

uint64_t ReadBoth(const std::byte* a, const std::byte* b, size_t bytes, Loads loads) {
  uint64_t any = 0;
  for (size_t i = ReadWide(a, b, bytes, loads, any); i + 8 <= bytes; i += 8) {
    uint64_t words[2];
    std::memcpy(&words[0], a + i, 8);
    std::memcpy(&words[1], b + i, 8);
    any |= words[0] | words[1];
  }
  return any;
}

}  // namespace lockstep::bench

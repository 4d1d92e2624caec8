#include "kernels/copy_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/copy_rows_scalar.h"
#include "kernels/instruction_sets.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::kernels {
namespace {

// Below this a copy may as well stay in the caches, and rows shorter than a few lines are mostly edges.
constexpr uint64_t kStreamedBytes = 256 * 1024;
constexpr uint64_t kStreamedRowBytes = 256;

using CopyRowFunction = void (*)(std::byte* dst, const std::byte* src, uint64_t bytes);
using ConvertRowFunction = void (*)(std::byte* dst, const std::byte* src, uint64_t elements);

struct Target {
  CopyRowFunction stream;  // null where there are no non-temporal stores
  ConvertRowFunction narrow;
  void (*fence)();
};

void NoFence() {}

#if defined(__x86_64__)

void StoreFence() {
  _mm_sfence();
}

// Bytes until `address` is a multiple of `alignment`, at most `bytes`.
uint64_t Head(const std::byte* address, uint64_t alignment, uint64_t bytes) {
  return std::min(bytes, (0 - reinterpret_cast<uintptr_t>(address)) & (alignment - 1));
}

// Asks for the four lines that long rows come to after these, past the caches too: the hardware's own prefetch stops at
// the end of each page.
constexpr uint64_t kAheadBytes = 2048;
constexpr uint64_t kLines = 4 * 64;

void FetchAhead(const std::byte* src) {
  for (uint64_t line = 0; line < kLines; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(src + kAheadBytes + line), _MM_HINT_NTA);
  }
}

__attribute__((target("avx512f"))) void StreamLine512(std::byte* dst, const std::byte* src) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), _mm512_loadu_si512(src));
}

__attribute__((target("avx2"))) void StreamLine256(std::byte* dst, const std::byte* src) {
  const auto* from = reinterpret_cast<const __m256i*>(src);
  auto* to = reinterpret_cast<__m256i*>(dst);
  const __m256i low = _mm256_loadu_si256(from);
  const __m256i high = _mm256_loadu_si256(from + 1);
  _mm256_stream_si256(to, low);
  _mm256_stream_si256(to + 1, high);
}

// Inlined into a function for each target.
template <void (*StreamLine)(std::byte* dst, const std::byte* src)>
inline __attribute__((always_inline)) void StreamRow(std::byte* dst, const std::byte* src, uint64_t bytes) {
  uint64_t at = Head(dst, 64, bytes);
  std::memcpy(dst, src, at);
  for (; at + kLines + kAheadBytes <= bytes; at += kLines) {
    FetchAhead(src + at);
    for (uint64_t line = at; line < at + kLines; line += 64) StreamLine(dst + line, src + line);
  }
  for (; at + 64 <= bytes; at += 64) StreamLine(dst + at, src + at);
  std::memcpy(dst + at, src + at, bytes - at);
}

__attribute__((target("avx512f"))) void StreamRow512(std::byte* dst, const std::byte* src, uint64_t bytes) {
  StreamRow<StreamLine512>(dst, src, bytes);
}

__attribute__((target("avx2"))) void StreamRow256(std::byte* dst, const std::byte* src, uint64_t bytes) {
  StreamRow<StreamLine256>(dst, src, bytes);
}

// The scalar rule without its branch, in a form that the compiler makes vectors of.
__attribute__((target("avx2"))) void NarrowRow256(std::byte* dst, const std::byte* src, uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) {
    uint32_t bits;
    std::memcpy(&bits, src + 4 * i, 4);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const auto result = static_cast<uint16_t>((bits & 0x7fff'ffff) > 0x7f80'0000 ? 0x7fc0 : rounded);
    std::memcpy(dst + 2 * i, &result, 2);
  }
}

Target ChooseTarget() {
  if (__builtin_cpu_supports("avx512f") && !KeptToAvx2()) return {StreamRow512, NarrowRow256, StoreFence};
  if (__builtin_cpu_supports("avx2")) return {StreamRow256, NarrowRow256, StoreFence};
  return {nullptr, scalar::ConvertRowF32ToBF16, NoFence};
}

#else

Target ChooseTarget() {
  return {nullptr, scalar::ConvertRowF32ToBF16, NoFence};
}

#endif

const Target& ThisTarget() {
  static const Target target = ChooseTarget();
  return target;
}

void MemcpyRow(std::byte* dst, const std::byte* src, uint64_t bytes) {
  std::memcpy(dst, src, bytes);
}

}  // namespace

void CopyRows(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows, uint64_t row_bytes) {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  if (row_bytes == 0) return;
  const Target& target = ThisTarget();
  const bool streamed = target.stream != nullptr && row_bytes >= kStreamedRowBytes &&
                        rows >= (kStreamedBytes + row_bytes - 1) / row_bytes;
  const CopyRowFunction copy = streamed ? target.stream : MemcpyRow;
  for (uint64_t row = 0; row < rows; ++row) copy(to + row * dst_pitch, from + row * src_pitch, row_bytes);
  if (streamed) target.fence();
}

void CopyRowsF32ToBF16(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                       uint64_t row_elements) {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  const ConvertRowFunction narrow = ThisTarget().narrow;
  for (uint64_t row = 0; row < rows; ++row) narrow(to + row * dst_pitch, from + row * src_pitch, row_elements);
}

void CopyRowsBF16ToF32(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                       uint64_t row_elements) {
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  for (uint64_t row = 0; row < rows; ++row) {
    scalar::ConvertRowBF16ToF32(to + row * dst_pitch, from + row * src_pitch, row_elements);
  }
}

}  // namespace lockstep::kernels

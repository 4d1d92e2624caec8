#include "kernels/scatter.h"

#include <algorithm>
#include <cstring>

namespace lockstep::kernels {
namespace {

// Offsets rise by a few cache lines at a time, too unevenly for the hardware to guess all of them.
constexpr size_t kAhead = 32;

// `move(i)` for every i, each a while after `fetch(i)`.
template <typename Fetch, typename Move>
inline void Pipelined(size_t count, Fetch fetch, Move move) {
  const size_t fetched = count - std::min(count, kAhead);
  size_t i = 0;
  for (; i < fetched; ++i) {
    fetch(i + kAhead);
    move(i);
  }
  for (; i < count; ++i) move(i);
}

template <size_t kUnit>
void Scatter(char* to, const uint32_t* offsets, const char* values, size_t count) {
  Pipelined(
      count, [=](size_t i) { __builtin_prefetch(to + offsets[i], 1); },
      [=](size_t i) { std::memcpy(to + offsets[i], values + i * kUnit, kUnit); });
}

template <size_t kUnit>
void Gather(const char* from, const uint32_t* offsets, char* values, size_t count) {
  Pipelined(
      count, [=](size_t i) { __builtin_prefetch(from + offsets[i]); },
      [=](size_t i) { std::memcpy(values + i * kUnit, from + offsets[i], kUnit); });
}

}  // namespace

void ScatterUnits(void* dst, uint32_t unit, const uint32_t* offsets, const void* values, size_t count) {
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(values);
  switch (unit) {
    case 1:
      return Scatter<1>(to, offsets, from, count);
    case 2:
      return Scatter<2>(to, offsets, from, count);
    case 4:
      return Scatter<4>(to, offsets, from, count);
    default:
      return Scatter<8>(to, offsets, from, count);
  }
}

void GatherUnits(const void* src, uint32_t unit, const uint32_t* offsets, void* values, size_t count) {
  const auto* from = static_cast<const char*>(src);
  auto* to = static_cast<char*>(values);
  switch (unit) {
    case 1:
      return Gather<1>(from, offsets, to, count);
    case 2:
      return Gather<2>(from, offsets, to, count);
    case 4:
      return Gather<4>(from, offsets, to, count);
    default:
      return Gather<8>(from, offsets, to, count);
  }
}

}  // namespace lockstep::kernels

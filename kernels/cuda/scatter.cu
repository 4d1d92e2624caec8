#include "kernels/cuda/elements.h"
#include "kernels/cuda/scatter.h"

namespace lockstep::kernels::cuda {
namespace {

template <typename T>
__global__ void ScatterUnits(char* dst, const UnitRun* runs, uint32_t run_count, const uint32_t* offsets,
                             const T* values, uint64_t count) {
  const uint64_t i = ThreadIndex();
  if (i >= count) return;
  uint32_t run = 0;
  for (uint32_t end = run_count; end - run > 1;) {
    const uint32_t middle = run + (end - run) / 2;
    (runs[middle].first <= i ? run : end) = middle;
  }
  Store<T>(dst + runs[run].base + offsets[i], values[i]);
}

template <typename T>
__global__ void MoveUnits(char* dst, uint64_t dst_pitch, const char* src, uint64_t src_pitch, uint64_t row_units,
                          uint64_t count) {
  const uint64_t i = ThreadIndex();
  if (i >= count) return;
  const uint64_t row = i / row_units;
  const uint64_t at = i % row_units * sizeof(T);
  Store<T>(dst + row * dst_pitch + at, Load<T>(src + row * src_pitch + at));
}

template <typename Body>
cudaError_t WithUnit(uint32_t unit, const Body& body) {
  switch (unit) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    case 8:
      return body(uint64_t{});
    default:
      return cudaErrorInvalidValue;
  }
}

// The widest that a row is whole in.
uint32_t UnitOf(uint64_t row_bytes) {
  uint32_t unit = 8;
  while (row_bytes % unit != 0) unit /= 2;
  return unit;
}

}  // namespace

cudaError_t StartScatter(void* dst, uint32_t unit, const UnitRun* runs, uint32_t run_count, const uint32_t* offsets,
                         const void* values, uint64_t count, cudaStream_t stream) {
  return WithUnit(unit, [&](auto zero) {
    using T = decltype(zero);
    return Launch("ScatterUnits", ScatterUnits<T>, count, stream, static_cast<char*>(dst), runs, run_count, offsets,
                  static_cast<const T*>(values), count);
  });
}

cudaError_t StartCopyRows(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                          uint64_t row_bytes, cudaStream_t stream) {
  const uint32_t unit = UnitOf(row_bytes);
  const uint64_t row_units = row_bytes / unit;
  return WithUnit(unit, [&](auto zero) {
    using T = decltype(zero);
    return Launch("MoveUnits", MoveUnits<T>, rows * row_units, stream, static_cast<char*>(dst), dst_pitch,
                  static_cast<const char*>(src), src_pitch, row_units, rows * row_units);
  });
}

}  // namespace lockstep::kernels::cuda

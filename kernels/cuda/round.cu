#include "kernels/cuda/elements.h"
#include "kernels/cuda/round.h"

namespace lockstep::kernels::cuda {
namespace {

// To nearest, ties to even; every NaN becomes 0x7FC0.
__device__ uint16_t BF16OfF32(uint32_t bits) {
  if ((bits & 0x7fff'ffff) > 0x7f80'0000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

__global__ void RoundRows(char* dst, uint64_t dst_pitch, const char* src, uint64_t src_pitch, uint64_t row_elements,
                          uint64_t count) {
  const uint64_t i = ThreadIndex();
  if (i >= count) return;
  const uint64_t row = i / row_elements;
  const uint64_t column = i % row_elements;
  Store<uint16_t>(dst + row * dst_pitch + 2 * column, BF16OfF32(Load<uint32_t>(src + row * src_pitch + 4 * column)));
}

__global__ void WidenRows(char* dst, uint64_t dst_pitch, const char* src, uint64_t src_pitch, uint64_t row_elements,
                          uint64_t count) {
  const uint64_t i = ThreadIndex();
  if (i >= count) return;
  const uint64_t row = i / row_elements;
  const uint64_t column = i % row_elements;
  Store<uint32_t>(dst + row * dst_pitch + 4 * column,
                  static_cast<uint32_t>(Load<uint16_t>(src + row * src_pitch + 2 * column)) << 16);
}

template <typename T>
__global__ void MoveRows(char* dst, uint64_t dst_pitch, const char* src, uint64_t src_pitch, uint64_t row_units,
                         uint64_t count) {
  const uint64_t i = ThreadIndex();
  if (i >= count) return;
  const uint64_t row = i / row_units;
  const uint64_t at = sizeof(T) * (i % row_units);
  Store<T>(dst + row * dst_pitch + at, Load<T>(src + row * src_pitch + at));
}

template <typename T>
cudaError_t StartMoveRows(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                          uint64_t row_bytes, cudaStream_t stream) {
  const uint64_t row_units = row_bytes / sizeof(T);
  return Launch("MoveRows", MoveRows<T>, rows * row_units, stream, static_cast<char*>(dst), dst_pitch,
                static_cast<const char*>(src), src_pitch, row_units, rows * row_units);
}

}  // namespace

cudaError_t LoadRounding() {
  return LoadKernels(RoundRows, WidenRows, MoveRows<uint64_t>, MoveRows<uint32_t>, MoveRows<uint16_t>,
                     MoveRows<uint8_t>);
}

// By the widest unit that a row is whole in.
cudaError_t StartNarrowRows(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                            uint64_t row_bytes, cudaStream_t stream) {
  const auto start = row_bytes % 8 == 0   ? StartMoveRows<uint64_t>
                     : row_bytes % 4 == 0 ? StartMoveRows<uint32_t>
                     : row_bytes % 2 == 0 ? StartMoveRows<uint16_t>
                                          : StartMoveRows<uint8_t>;
  return start(dst, dst_pitch, src, src_pitch, rows, row_bytes, stream);
}

cudaError_t StartRowsF32ToBF16(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                               uint64_t row_elements, cudaStream_t stream) {
  const uint64_t count = rows * row_elements;
  return Launch("RoundRows", RoundRows, count, stream, static_cast<char*>(dst), dst_pitch,
                static_cast<const char*>(src), src_pitch, row_elements, count);
}

cudaError_t StartRowsBF16ToF32(void* dst, uint64_t dst_pitch, const void* src, uint64_t src_pitch, uint64_t rows,
                               uint64_t row_elements, cudaStream_t stream) {
  const uint64_t count = rows * row_elements;
  return Launch("WidenRows", WidenRows, count, stream, static_cast<char*>(dst), dst_pitch,
                static_cast<const char*>(src), src_pitch, row_elements, count);
}

}  // namespace lockstep::kernels::cuda

// Of cuda_runtime_api.h: copies.
#include <algorithm>
#include <cstring>

#include "tests/cuda/calls.h"

using namespace lockstep::cuda;  // NOLINT: the stand-in's outer face

namespace {

// Whether all of a device's bytes are of one allocation; true of the host's.
bool Whole(const void* pointer, uint64_t bytes) {
  const Allocation* const allocation = FindAllocation(pointer);
  return allocation == nullptr ||
         static_cast<const std::byte*>(pointer) + bytes <= allocation->base + allocation->bytes;
}

// Whether the host's bytes are all in one pinned range, or none of them in any; true of a device's.
bool Alike(const void* pointer, uint64_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(pointer);
  if (FindAllocation(pointer) != nullptr) return true;
  const std::byte* base = nullptr;
  if (const HostRange* const range = FindHost(pointer, &base)) return begin + bytes <= base + range->bytes;
  const auto next = TheMachine().host.upper_bound(begin);
  return next == TheMachine().host.end() || next->first >= begin + bytes;
}

struct Rows {
  std::byte* to;
  uint64_t to_pitch;
  const std::byte* from;
  uint64_t from_pitch;
  uint64_t width;
  uint64_t height;

  uint64_t to_span() const { return height == 0 ? 0 : (height - 1) * to_pitch + width; }
  uint64_t from_span() const { return height == 0 ? 0 : (height - 1) * from_pitch + width; }
  void Copy() const {
    for (uint64_t row = 0; row < height; ++row) std::memmove(to + row * to_pitch, from + row * from_pitch, width);
  }
};

bool RightWay(cudaMemcpyKind kind, const Rows& rows) {
  if (kind == cudaMemcpyDefault) return true;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return to_device == InDevice(rows.to) && from_device == InDevice(rows.from);
}

// Memory that is neither pinned nor a device's has its bytes taken now, or is written before this returns.
cudaError_t StartCopy(Lock& lock, CUstream_st& stream, const Rows& rows, cudaMemcpyKind kind, std::string_view who) {
  if (rows.width == 0 || rows.height == 0) return cudaSuccess;
  if (!RightWay(kind, rows)) return cudaErrorInvalidMemcpyDirection;
  if (!Whole(rows.to, rows.to_span()) || !Whole(rows.from, rows.from_span())) return cudaErrorInvalidValue;
  if (!Alike(rows.to, rows.to_span()) || !Alike(rows.from, rows.from_span())) return cudaErrorInvalidValue;
  Work work{
      .run = [rows] { rows.Copy(); }, .memory = {rows.to, rows.from}, .bytes = {rows.to_span(), rows.from_span()}};
  const bool pageable_source = !InDevice(rows.from) && FindHost(rows.from) == nullptr;
  if (pageable_source) {
    std::vector<std::byte> taken(rows.from, rows.from + rows.from_span());
    work.memory[1] = nullptr;
    work.run = [rows, taken = std::move(taken)]() mutable {
      Rows of_taken = rows;
      of_taken.from = taken.data();
      of_taken.Copy();
    };
  }
  stream.work.push_back(std::move(work));
  if (InDevice(rows.to) || FindHost(rows.to) != nullptr) return cudaSuccess;
  return Await(lock, stream, nullptr, 0, who);
}

cudaError_t StartSet(CUstream_st& stream, void* pointer, uint64_t pitch, int value, uint64_t width, uint64_t height) {
  const uint64_t span = height == 0 ? 0 : (height - 1) * pitch + width;
  if (!InDevice(pointer) && FindHost(pointer) == nullptr) return cudaErrorInvalidValue;
  if (!Whole(pointer, span)) return cudaErrorInvalidValue;
  auto* const to = static_cast<std::byte*>(pointer);
  stream.work.push_back({.run =
                             [=] {
                               for (uint64_t row = 0; row < height; ++row) std::memset(to + row * pitch, value, width);
                             },
                         .memory = {pointer},
                         .bytes = {span}});
  return cudaSuccess;
}

}  // namespace

extern "C" {

// Of pageable memory it returns before the device has it.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  Lock lock(TheMachine().mutex);
  return MadeOn({.name = "cudaMemcpy", .to = to, .from = from, .bytes = bytes}, [&](CUstream_st& stream) {
    const Rows rows{static_cast<std::byte*>(to), bytes, static_cast<const std::byte*>(from), bytes, bytes, 1};
    const auto error = StartCopy(lock, stream, rows, kind, "cudaMemcpy");
    if (error != cudaSuccess || (!InDevice(from) && FindHost(from) == nullptr)) return error;
    return Await(lock, stream, nullptr, 0, "cudaMemcpy");
  });
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  Lock lock(TheMachine().mutex);
  return MadeOn({.name = "cudaMemset", .to = pointer, .bytes = bytes},
                [&](CUstream_st& stream) { return StartSet(stream, pointer, bytes, value, bytes, 1); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  Lock lock(TheMachine().mutex);
  const Call call{.name = "cudaMemcpyAsync", .stream = handle, .to = to, .from = from, .bytes = bytes};
  return MadeOn(call, [&](CUstream_st& stream) {
    const Rows rows{static_cast<std::byte*>(to), bytes, static_cast<const std::byte*>(from), bytes, bytes, 1};
    return StartCopy(lock, stream, rows, kind, "cudaMemcpyAsync");
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t handle) {
  Lock lock(TheMachine().mutex);
  const Call call{.name = "cudaMemcpy2DAsync",
                  .stream = handle,
                  .to = to,
                  .from = from,
                  .bytes = width,
                  .rows = height,
                  .to_pitch = to_pitch,
                  .from_pitch = from_pitch};
  return MadeOn(call, [&](CUstream_st& stream) {
    const uint64_t largest = std::max(to_pitch, from_pitch);
    if (std::min(to_pitch, from_pitch) < width || largest > kMaxPitch) return cudaErrorInvalidPitchValue;
    const Rows rows{
        static_cast<std::byte*>(to), to_pitch, static_cast<const std::byte*>(from), from_pitch, width, height};
    return StartCopy(lock, stream, rows, kind, "cudaMemcpy2DAsync");
  });
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t handle) {
  Lock lock(TheMachine().mutex);
  const Call call{.name = "cudaMemsetAsync", .stream = handle, .to = pointer, .bytes = bytes};
  return MadeOn(call, [&](CUstream_st& stream) { return StartSet(stream, pointer, bytes, value, bytes, 1); });
}

cudaError_t cudaMemset2DAsync(void* pointer, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t handle) {
  Lock lock(TheMachine().mutex);
  const Call call{
      .name = "cudaMemset2DAsync", .stream = handle, .to = pointer, .bytes = width, .rows = height, .to_pitch = pitch};
  return MadeOn(call, [&](CUstream_st& stream) {
    if (pitch < width || pitch > kMaxPitch) return cudaErrorInvalidPitchValue;
    return StartSet(stream, pointer, pitch, value, width, height);
  });
}

}  // extern "C"

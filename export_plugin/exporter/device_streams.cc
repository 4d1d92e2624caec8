#include "export_plugin/exporter/device_streams.h"

#include <algorithm>
#include <utility>

#include "common/base/text.h"
#include "kernels/cuda/round.h"

namespace lockstep::exporter {
namespace {

// Two-dimensional copies of the driver take no larger pitch.
constexpr uint64_t kMaxPitch = INT32_MAX;
// Rows below that cross the bus one by one, at a small part of its rate.
constexpr uint64_t kNarrowBytes = 256;

cudaError_t StartRows(ElementConversion conversion, void* target, uint64_t target_pitch, const void* source,
                      uint64_t source_pitch, uint64_t rows, uint64_t row_bytes, cudaStream_t stream) {
  if (conversion == ElementConversion::kNone) {
    return kernels::cuda::StartNarrowRows(target, target_pitch, source, source_pitch, rows, row_bytes, stream);
  }
  if (conversion == ElementConversion::kF32ToBF16) {
    return kernels::cuda::StartRowsF32ToBF16(target, target_pitch, source, source_pitch, rows, row_bytes / 2, stream);
  }
  return kernels::cuda::StartRowsBF16ToF32(target, target_pitch, source, source_pitch, rows, row_bytes / 4, stream);
}

// Whether rows lie apart on the device and side by side on the host: they cross the bus faster once they are packed.
bool PacksFirst(const layout::StridedCopy& copy, bool from_here, bool to_here) {
  if (from_here == to_here || copy.rows <= 1 || copy.row_bytes >= kNarrowBytes) return false;
  const uint64_t on_host = from_here ? copy.target_pitch : copy.source_pitch;
  const uint64_t on_device = from_here ? copy.source_pitch : copy.target_pitch;
  return on_host == copy.row_bytes && on_device > copy.row_bytes;
}

}  // namespace

Result<std::unique_ptr<DeviceStreams>> DeviceStreams::Create(int device) {
  std::unique_ptr<DeviceStreams> streams(new DeviceStreams(device));
  for (cudaStream_t& stream : streams->streams_) {
    LS_RETURN_IF_ERROR(
        streams->CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
  }
  for (cudaEvent_t* event : {&streams->joined_, &streams->marks_[0], &streams->marks_[1]}) {
    // A thread that waits for an event spins: one that sleeps wakes about 0.1 ms late, for each tensor of a stream.
    LS_RETURN_IF_ERROR(
        streams->CheckCuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "creating an event"));
  }
  return streams;
}

DeviceStreams::~DeviceStreams() {
  for (const cudaEvent_t event : {joined_, marks_[0], marks_[1]}) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
  for (const cudaStream_t stream : streams_) {
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }
  if (halves_[0] != nullptr) (void)cudaFree(halves_[0]);
}

Status DeviceStreams::CheckCuda(cudaError_t error, std::string_view what) const {
  return error == cudaSuccess ? OkStatus() : CudaStatus(error, Cat(what, " (device ", device_, ")"));
}

Status DeviceStreams::Prepare() {
  LS_RETURN_IF_ERROR(NeedSlab());
  return CheckCuda(kernels::cuda::LoadRounding(), "loading what converts elements");
}

Status DeviceStreams::NeedSlab() {
  if (halves_[0] != nullptr) return OkStatus();
  constexpr uint64_t kBytes = 2 * kPartBytes;
  void* slab = nullptr;
  LS_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&slab, kBytes), Cat("allocating ", kBytes, " bytes to convert in")));
  halves_ = {static_cast<std::byte*>(slab), static_cast<std::byte*>(slab) + kPartBytes};
  return OkStatus();
}

Status DeviceStreams::Start(const PlacedCopy& placed, bool from_here, bool to_here, const PinnedRanges& pinned) {
  if (placed.copy.bytes() == 0) return OkStatus();
  if (placed.conversion != ElementConversion::kNone || PacksFirst(placed.copy, from_here, to_here)) {
    return Convert(placed, from_here, to_here, pinned);
  }
  return Copy(0, placed.copy, placed.source, placed.target, pinned);
}

Status DeviceStreams::Mark(size_t batch) {
  constexpr std::string_view kWhat = "marking the end of a batch";
  LS_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(joined_, streams_[1]), kWhat));
  LS_RETURN_IF_ERROR(CheckCuda(cudaStreamWaitEvent(streams_[0], joined_), kWhat));
  return CheckCuda(cudaEventRecord(marks_[batch], streams_[0]), kWhat);
}

Status DeviceStreams::WaitFor(size_t batch) {
  return CheckCuda(cudaEventSynchronize(marks_[batch]), "waiting for copies");
}

Status DeviceStreams::Drain() {
  Status first = CheckCuda(cudaStreamSynchronize(streams_[0]), "waiting for copies");
  Status second = CheckCuda(cudaStreamSynchronize(streams_[1]), "waiting for copies");
  return first.ok() ? second : first;
}

// Memory of devices is in none of the pinned ranges: cutting by both sides is cutting by the host's.
Status DeviceStreams::Copy(size_t stream, const layout::StridedCopy& copy, const std::byte* source, std::byte* target,
                           const PinnedRanges& pinned) {
  std::vector<layout::StridedCopy> by_target;
  std::vector<layout::StridedCopy> parts;
  pinned.AppendCut(copy, target, true, by_target);
  for (const layout::StridedCopy& part : by_target) pinned.AppendCut(part, source, false, parts);
  for (const layout::StridedCopy& part : parts) {
    LS_RETURN_IF_ERROR(CopyRows(stream, target + part.target_offset, part.target_pitch, source + part.source_offset,
                                part.source_pitch, part.rows, part.row_bytes));
  }
  return OkStatus();
}

// Rows side by side on both ends are one. Rows that share a source, or lie further apart than the driver can say, go
// one by one.
Status DeviceStreams::CopyRows(size_t stream, std::byte* target, uint64_t target_pitch, const std::byte* source,
                               uint64_t source_pitch, uint64_t rows, uint64_t row_bytes) {
  constexpr std::string_view kWhat = "starting a copy";
  if (source_pitch == row_bytes && target_pitch == row_bytes) {
    row_bytes *= rows;
    rows = 1;
  }
  const bool in_two_dimensions =
      rows > 1 && source_pitch >= row_bytes && std::max(source_pitch, target_pitch) <= kMaxPitch;
  if (in_two_dimensions) {
    return CheckCuda(cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, row_bytes, rows, cudaMemcpyDefault,
                                       streams_[stream]),
                     kWhat);
  }
  for (uint64_t row = 0; row < rows; ++row) {
    LS_RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(target + row * target_pitch, source + row * source_pitch, row_bytes,
                                                 cudaMemcpyDefault, streams_[stream]),
                                 kWhat));
  }
  return OkStatus();
}

// Where both sides are here, at once; else part by part through the slab: a stream's order keeps parts of one half
// apart.
Status DeviceStreams::Convert(const PlacedCopy& placed, bool from_here, bool to_here, const PinnedRanges& pinned) {
  if (from_here && to_here) return ConvertPart(placed, placed.copy, true, true, pinned);
  LS_RETURN_IF_ERROR(NeedSlab());
  const layout::ElementBytes element = ElementsOf(placed.conversion);
  const uint64_t most = from_here ? kPartBytes : kPartBytes / element.source * element.target;
  std::vector<layout::StridedCopy> parts;
  layout::AppendSplit(placed.copy, std::min(most, kPartBytes), element, parts);
  for (const layout::StridedCopy& part : parts) {
    LS_RETURN_IF_ERROR(ConvertPart(placed, part, from_here, to_here, pinned));
  }
  return OkStatus();
}

Status DeviceStreams::ConvertPart(const PlacedCopy& placed, const layout::StridedCopy& part, bool from_here,
                                  bool to_here, const PinnedRanges& pinned) {
  constexpr std::string_view kWhat = "starting a conversion";
  const layout::ElementBytes element = ElementsOf(placed.conversion);
  const size_t stream = std::exchange(turn_, 1 - turn_);
  std::byte* const slab = halves_[stream];
  const std::byte* source = placed.source + part.source_offset;
  std::byte* target = placed.target + part.target_offset;
  uint64_t source_pitch = part.source_pitch;
  const uint64_t source_row = part.row_bytes / element.target * element.source;
  if (!from_here) {
    const layout::StridedCopy packing{0, 0, part.rows, source_row, part.source_pitch, source_row};
    LS_RETURN_IF_ERROR(Copy(stream, packing, source, slab, pinned));
    source = slab;
    source_pitch = source_row;
  }
  const bool direct = to_here;
  const uint64_t target_pitch = direct ? part.target_pitch : part.row_bytes;
  LS_RETURN_IF_ERROR(CheckCuda(StartRows(placed.conversion, direct ? target : slab, target_pitch, source, source_pitch,
                                         part.rows, part.row_bytes, streams_[stream]),
                               kWhat));
  if (direct) return OkStatus();
  const layout::StridedCopy placing{0, 0, part.rows, part.row_bytes, part.row_bytes, part.target_pitch};
  return Copy(stream, placing, slab, target, pinned);
}

}  // namespace lockstep::exporter

// DeviceStreams: what the copy engine has on one GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>

#include "common/gpu/current_device.h"
#include "common/gpu/gpu_status.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/exporter/pinned_pages.h"

namespace lockstep::exporter {

using gpu::CudaStatus;
using gpu::CurrentDevice;

// Two streams; an event for each batch that may be under way; memory to convert elements and pack narrow rows in, from
// the first such copy on. Each stream has a half of that memory. The streams take parts in turns, so that one part is
// converted while the one before crosses the bus.
//
// Not thread-safe. REQUIRES in every call that the device is current.
class DeviceStreams {
 public:
  static constexpr size_t kBatches = 2;
  static constexpr uint64_t kPartBytes = uint64_t{8} << 20;  // that are converted at once, on the side that has fewer

  static Result<std::unique_ptr<DeviceStreams>> Create(int device);
  ~DeviceStreams();
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  // Makes what the first copies and conversions would make otherwise.
  Status Prepare();

  // Starts a copy, one side of which is in this device's memory. `pinned` is where host memory is pinned: no copy of
  // CUDA's may lie in two pinned ranges.
  Status Start(const PlacedCopy& placed, bool from_here, bool to_here, const PinnedRanges& pinned);

  Status Mark(size_t batch);     // the end of what was started
  Status WaitFor(size_t batch);  // until all before its mark is in place
  Status Drain();                // until all is

  int device() const { return device_; }

 private:
  explicit DeviceStreams(int device) : device_(device) {}

  Status CheckCuda(cudaError_t error, std::string_view what) const;
  Status Copy(size_t stream, const layout::StridedCopy& copy, const std::byte* source, std::byte* target,
              const PinnedRanges& pinned);
  Status CopyRows(size_t stream, std::byte* target, uint64_t target_pitch, const std::byte* source,
                  uint64_t source_pitch, uint64_t rows, uint64_t row_bytes);
  Status NeedSlab();
  Status Convert(const PlacedCopy& placed, bool from_here, bool to_here, const PinnedRanges& pinned);
  Status ConvertPart(const PlacedCopy& placed, const layout::StridedCopy& part, bool from_here, bool to_here,
                     const PinnedRanges& pinned);

  const int device_;
  std::array<cudaStream_t, 2> streams_{};
  size_t turn_ = 0;               // the stream of the next part
  cudaEvent_t joined_ = nullptr;  // the end of the second stream, which the first one waits for
  std::array<cudaEvent_t, kBatches> marks_{};
  std::array<std::byte*, 2> halves_{};  // of one allocation
};

}  // namespace lockstep::exporter

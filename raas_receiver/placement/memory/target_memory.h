// TargetMemory: memory of an engine's rank, written by this process: host memory that is mapped here, or a GPU's by
// CUDA IPC. Memory that a rank writes by itself has the same face (targets/own_writes.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/status.h"
#include "common/layout/strided_copy.h"
#include "common/os/segment.h"
#include "raas_receiver/placement/description/description.h"

namespace lockstep::placement {

// Changed units of one memory. Unit i goes to byte base + offsets[i]; its bytes are values[i * unit, (i + 1) * unit).
struct ScatterRun {
  uint64_t base = 0;
  uint32_t unit = 2;  // bytes: 1, 2, 4 or 8
  std::span<const uint32_t> offsets;
  const std::byte* values = nullptr;
};

// Scatter, Copy and Zero may be called by several threads at once, for ranges that do not overlap; Finish of several
// memories too. They may return
// before the bytes are there: Finish() waits, and answers the first error of any of them. Arguments must live until
// then. Bounds are the caller's duty: a plan's offsets lie within its buffers.
class TargetMemory {
 public:
  virtual ~TargetMemory() = default;

  virtual uint64_t bytes() const = 0;
  virtual Status Scatter(std::span<const ScatterRun> runs) = 0;
  virtual Status Copy(std::span<const layout::StridedCopy> copies, const std::byte* source) = 0;
  virtual Status Zero(std::span<const StridedRange> ranges) = 0;
  virtual Status Finish() = 0;
  // Whether the bytes that `copies` would write are those that are there.
  virtual Result<bool> Equal(std::span<const layout::StridedCopy> copies, const std::byte* source) = 0;
  virtual Result<bool> IsZero(std::span<const StridedRange> ranges) = 0;
};

// `memory` is another process' memory too.
std::unique_ptr<TargetMemory> NewHostMemory(os::MappedSegment memory);

// Opens the allocation behind a CUDA IPC handle. kState in a build without CUDA; kUnavailable or kNotFound when there
// is no such GPU, or none that works, saying why; kBadData for a handle that it does not know or memory that is shorter
// than said.
Result<std::unique_ptr<TargetMemory>> OpenCudaMemory(const MemoryDescription& memory);

// Whether this build can.
extern const bool kOpensCudaMemory;

// OK, or the error after which nothing that this process does on any GPU succeeds: only another process can go on.
Status LostGpu();

}  // namespace lockstep::placement

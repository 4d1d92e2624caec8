// OpenCudaMemory() of builds with CUDA.
#include <algorithm>
#include <cstring>

#include "common/base/text.h"
#include "kernels/copy_rows.h"
#include "raas_receiver/placement/memory/cuda_gpu.h"
#include "raas_receiver/placement/memory/cuda_scatter.h"
#include "raas_receiver/placement/memory/target_memory.h"

namespace lockstep::placement {
namespace {

// What pieces of staging memory are aligned to: any unit.
constexpr uint64_t kAlignment = 8;
// Two-dimensional copies of the driver take no larger pitch.
constexpr uint64_t kMaxPitch = INT32_MAX;

uint64_t Aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// A borrowed lane, and how much of its memory is taken. A full one is changed for another, so that one is filled while
// others are on their way.
class Staging {
 public:
  explicit Staging(CudaGpu& gpu) : gpu_(gpu) {}
  ~Staging() {
    if (lane_ != nullptr) gpu_.GiveBack(lane_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Where the next `bytes` of staging memory begin. REQUIRES Aligned(bytes) <= StagingLane::kBytes.
  Result<uint64_t> Take(uint64_t bytes) {
    if (lane_ == nullptr || used_ + Aligned(bytes) > StagingLane::kBytes) {
      if (lane_ != nullptr) gpu_.GiveBack(lane_);
      lane_ = gpu_.Borrow();
      used_ = 0;
      LS_RETURN_IF_ERROR(lane_->Wait());
    }
    const uint64_t at = used_;
    used_ += Aligned(bytes);
    return at;
  }
  StagingLane& lane() { return *lane_; }

 private:
  CudaGpu& gpu_;
  StagingLane* lane_ = nullptr;
  uint64_t used_ = 0;
};

class CudaMemory : public TargetMemory {
 public:
  CudaMemory(std::shared_ptr<CudaGpu> gpu, std::shared_ptr<IpcAllocation> allocation, uint64_t offset, uint64_t bytes)
      : gpu_(std::move(gpu)), allocation_(std::move(allocation)), data_(allocation_->base() + offset), bytes_(bytes) {}

  // What is under way must not meet unmapped memory.
  ~CudaMemory() override {
    if (gpu_->Enter().ok()) (void)gpu_->WaitForAll();
  }

  uint64_t bytes() const override { return bytes_; }

  Status Scatter(std::span<const ScatterRun> runs) override {
    if (runs.empty()) return OkStatus();
    LS_RETURN_IF_ERROR(gpu_->Enter());
    Staging staging(*gpu_);
    for (const ScatterRun& run : runs) {
      const size_t at_once = (StagingLane::kBytes - 2 * kAlignment) / (sizeof(uint32_t) + run.unit);
      for (size_t from = 0; from < run.offsets.size(); from += at_once) {
        LS_RETURN_IF_ERROR(ScatterPart(run, from, std::min(at_once, run.offsets.size() - from), staging));
      }
    }
    return OkStatus();
  }

  Status Copy(std::span<const layout::StridedCopy> copies, const std::byte* source) override {
    if (copies.empty()) return OkStatus();
    LS_RETURN_IF_ERROR(gpu_->Enter());
    Staging staging(*gpu_);
    for (const layout::StridedCopy& part : Split(copies)) {
      LS_ASSIGN_OR_RETURN(const uint64_t at, staging.Take(part.bytes()));
      std::byte* const packed = staging.lane().pinned() + at;
      kernels::CopyRows(packed, part.row_bytes, source + part.source_offset, part.source_pitch, part.rows,
                        part.row_bytes);
      LS_RETURN_IF_ERROR(StartCopy(data_ + part.target_offset, part.target_pitch, packed, part.row_bytes, part,
                                   cudaMemcpyHostToDevice, staging.lane().stream()));
    }
    return OkStatus();
  }

  Status Zero(std::span<const StridedRange> ranges) override {
    if (ranges.empty()) return OkStatus();
    LS_RETURN_IF_ERROR(gpu_->Enter());
    Staging staging(*gpu_);
    LS_RETURN_IF_ERROR(staging.Take(0));
    for (const StridedRange& range : ranges) LS_RETURN_IF_ERROR(StartZeros(range, staging.lane().stream()));
    return OkStatus();
  }

  // Those of other memories of this GPU too: they share the lanes.
  Status Finish() override {
    LS_RETURN_IF_ERROR(gpu_->Enter());
    return gpu_->WaitForAll();
  }

  Result<bool> Equal(std::span<const layout::StridedCopy> copies, const std::byte* source) override {
    return AllParts(copies, [&](const layout::StridedCopy& part, const std::byte* row) {
      for (uint64_t i = 0; i < part.rows; ++i, row += part.row_bytes) {
        if (std::memcmp(row, source + part.source_offset + i * part.source_pitch, part.row_bytes) != 0) return false;
      }
      return true;
    });
  }

  Result<bool> IsZero(std::span<const StridedRange> ranges) override {
    std::vector<layout::StridedCopy> rows;
    for (const StridedRange& range : ranges) {
      rows.push_back({.target_offset = range.offset,
                      .rows = range.rows,
                      .row_bytes = range.row_bytes,
                      .target_pitch = range.pitch});
    }
    return AllParts(rows, [](const layout::StridedCopy& part, const std::byte* packed) {
      return std::all_of(packed, packed + part.bytes(), [](std::byte byte) { return byte == std::byte{0}; });
    });
  }

 private:
  static std::vector<layout::StridedCopy> Split(std::span<const layout::StridedCopy> copies) {
    std::vector<layout::StridedCopy> parts;
    for (const layout::StridedCopy& copy : copies)
      layout::AppendSplit(copy, StagingLane::kBytes, layout::ElementBytes{}, parts);
    return parts;
  }

  // Whether `check` is true of the memory's bytes of every part of `copies`, which it sees packed.
  template <typename Check>
  Result<bool> AllParts(std::span<const layout::StridedCopy> copies, const Check& check) {
    LS_RETURN_IF_ERROR(gpu_->Enter());
    Staging staging(*gpu_);
    for (const layout::StridedCopy& part : Split(copies)) {
      LS_ASSIGN_OR_RETURN(const uint64_t at, staging.Take(part.bytes()));
      std::byte* const packed = staging.lane().pinned() + at;
      LS_RETURN_IF_ERROR(StartCopy(packed, part.row_bytes, data_ + part.target_offset, part.target_pitch, part,
                                   cudaMemcpyDeviceToHost, staging.lane().stream()));
      LS_RETURN_IF_ERROR(staging.lane().Wait());
      if (!check(part, packed)) return false;
    }
    return true;
  }

  // Values, then offsets: one copy of both to the GPU, and the kernel behind it.
  Status ScatterPart(const ScatterRun& run, size_t from, size_t count, Staging& staging) {
    const uint64_t value_bytes = count * run.unit;
    const uint64_t offset_bytes = count * sizeof(uint32_t);
    LS_ASSIGN_OR_RETURN(const uint64_t at, staging.Take(Aligned(value_bytes) + offset_bytes));
    const uint64_t offsets_at = at + Aligned(value_bytes);
    StagingLane& lane = staging.lane();
    std::memcpy(lane.pinned() + at, run.values + from * run.unit, value_bytes);
    std::memcpy(lane.pinned() + offsets_at, run.offsets.data() + from, offset_bytes);
    LS_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(lane.device() + at, lane.pinned() + at, offsets_at + offset_bytes - at,
                                   cudaMemcpyHostToDevice, lane.stream()),
                   "starting the copy of changes"));
    return CudaStatus(StartScatter(data_ + run.base, run.unit, reinterpret_cast<uint32_t*>(lane.device() + offsets_at),
                                   lane.device() + at, count, lane.stream()),
                      "starting the scatter of changes");
  }

  // The rows of `shape` from one memory to the other.
  static Status StartCopy(std::byte* to, uint64_t to_pitch, const std::byte* from, uint64_t from_pitch,
                          const layout::StridedCopy& shape, cudaMemcpyKind kind, cudaStream_t stream) {
    constexpr std::string_view kWhat = "starting the copy of rows";
    if (shape.rows > 1 && std::max(to_pitch, from_pitch) <= kMaxPitch) {
      return CudaStatus(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, shape.row_bytes, shape.rows, kind, stream),
                        kWhat);
    }
    for (uint64_t row = 0; row < shape.rows; ++row) {
      LS_RETURN_IF_ERROR(CudaStatus(
          cudaMemcpyAsync(to + row * to_pitch, from + row * from_pitch, shape.row_bytes, kind, stream), kWhat));
    }
    return OkStatus();
  }

  Status StartZeros(const StridedRange& range, cudaStream_t stream) {
    constexpr std::string_view kWhat = "starting to write zeros";
    std::byte* const to = data_ + range.offset;
    if (range.rows > 1 && range.pitch <= kMaxPitch) {
      return CudaStatus(cudaMemset2DAsync(to, range.pitch, 0, range.row_bytes, range.rows, stream), kWhat);
    }
    for (uint64_t row = 0; row < range.rows; ++row) {
      LS_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(to + row * range.pitch, 0, range.row_bytes, stream), kWhat));
    }
    return OkStatus();
  }

  const std::shared_ptr<CudaGpu> gpu_;
  const std::shared_ptr<IpcAllocation> allocation_;
  std::byte* const data_;
  const uint64_t bytes_;
};

}  // namespace

const bool kOpensCudaMemory = true;

Result<std::unique_ptr<TargetMemory>> OpenCudaMemory(const MemoryDescription& memory) {
  LS_ASSIGN_OR_RETURN(auto gpu, CudaGpu::Find(memory.device));
  LS_RETURN_IF_ERROR(gpu->Enter());
  LS_ASSIGN_OR_RETURN(auto allocation, gpu->Open(memory.handle));
  if (memory.offset > allocation->bytes() || memory.bytes > allocation->bytes() - memory.offset) {
    return Status(ErrorCode::kBadData, Cat("GPU ", memory.device, ": memory of ", memory.bytes, " bytes at ",
                                           memory.offset, " of an allocation of ", allocation->bytes()));
  }
  return std::unique_ptr<TargetMemory>(
      std::make_unique<CudaMemory>(std::move(gpu), std::move(allocation), memory.offset, memory.bytes));
}

}  // namespace lockstep::placement

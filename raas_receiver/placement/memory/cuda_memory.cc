// OpenCudaMemory() of builds with CUDA.
#include <algorithm>
#include <cstring>

#include "common/base/text.h"
#include "kernels/copy_rows.h"
#include "kernels/cuda/scatter.h"
#include "raas_receiver/placement/memory/cuda_gpu.h"
#include "raas_receiver/placement/memory/target_memory.h"

namespace lockstep::placement {
namespace {

// Two-dimensional copies of the driver take no larger pitch.
constexpr uint64_t kMaxPitch = INT32_MAX;
// Rows below this are moved by a kernel, packed on the other side: the copy engine takes them one by one.
constexpr uint64_t kNarrowBytes = 256;
// What is left of a lane below this is left.
constexpr uint64_t kLeastRoom = uint64_t{64} << 10;

uint64_t Aligned(uint64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

// A borrowed lane. A full one is changed for another, so that one is filled while others are on their way.
class Staging {
 public:
  explicit Staging(CudaGpu& gpu) : gpu_(gpu) {}
  ~Staging() {
    if (lane_ != nullptr) gpu_.GiveBack(lane_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Where the next `bytes` of staging memory begin. REQUIRES bytes <= StagingLane::kBytes.
  Result<uint64_t> Take(uint64_t bytes) {
    LS_RETURN_IF_ERROR(MakeRoom(bytes));
    return *lane_->Take(bytes);
  }
  // How much one Take gets now, at least `least`.
  Result<uint64_t> Room(uint64_t least) {
    LS_RETURN_IF_ERROR(MakeRoom(least));
    return lane_->room();
  }
  StagingLane& lane() { return *lane_; }

 private:
  Status MakeRoom(uint64_t bytes) {
    if (lane_ == nullptr) lane_ = gpu_.Borrow();
    if (lane_->room() >= bytes) return OkStatus();
    gpu_.GiveBack(lane_);
    lane_ = gpu_.Borrow();
    return lane_->room() >= bytes ? OkStatus() : lane_->Renew();
  }

  CudaGpu& gpu_;
  StagingLane* lane_ = nullptr;
};

// Runs piece by piece: as many as fit, of one width.
class RunCursor {
 public:
  explicit RunCursor(std::span<const ScatterRun> runs) : runs_(runs) { SkipEmpty(); }

  bool done() const { return runs_.empty(); }

  // The next pieces that take at most `room` bytes with a UnitRun each. REQUIRES !done(), and room for one unit.
  std::vector<ScatterRun> Next(uint64_t room) {
    std::vector<ScatterRun> pieces;
    const uint32_t unit = runs_.front().unit;
    const uint64_t each = sizeof(uint32_t) + unit;
    while (!done() && runs_.front().unit == unit && room >= sizeof(kernels::cuda::UnitRun) + each) {
      const ScatterRun& run = runs_.front();
      room -= sizeof(kernels::cuda::UnitRun);
      const size_t count = std::min<size_t>(run.offsets.size() - from_, room / each);
      pieces.push_back({run.base, unit, run.offsets.subspan(from_, count), run.values + from_ * unit});
      room -= count * each;
      from_ += count;
      SkipEmpty();
    }
    return pieces;
  }

 private:
  void SkipEmpty() {
    while (!runs_.empty() && from_ == runs_.front().offsets.size()) {
      runs_ = runs_.subspan(1);
      from_ = 0;
    }
  }

  std::span<const ScatterRun> runs_;
  size_t from_ = 0;  // of the first one
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
    for (RunCursor cursor(runs); !cursor.done();) LS_RETURN_IF_ERROR(ScatterSome(cursor, staging));
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
      LS_RETURN_IF_ERROR(StartCopyIn(part, at, staging.lane()));
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
      LS_RETURN_IF_ERROR(StartCopyOut(part, at, staging.lane()));
      LS_RETURN_IF_ERROR(staging.lane().Wait());
      if (!check(part, packed)) return false;
    }
    return true;
  }

  // Runs, values and offsets of as much as staging memory takes at once: one copy of all to the GPU, and one kernel
  // behind it.
  Status ScatterSome(RunCursor& cursor, Staging& staging) {
    LS_ASSIGN_OR_RETURN(const uint64_t room, staging.Room(kLeastRoom));
    const std::vector<ScatterRun> runs = cursor.Next(room - Aligned(1));
    const uint32_t unit = runs.front().unit;
    std::vector<kernels::cuda::UnitRun> table;
    uint64_t count = 0;
    for (const ScatterRun& run : runs) {
      table.push_back({run.base, count});
      count += run.offsets.size();
    }
    const uint64_t table_bytes = table.size() * sizeof(table.front());
    const uint64_t offsets_from = table_bytes + Aligned(count * unit);
    const uint64_t bytes = offsets_from + count * sizeof(uint32_t);
    LS_ASSIGN_OR_RETURN(const uint64_t at, staging.Take(bytes));
    StagingLane& lane = staging.lane();
    std::byte* const packed = lane.pinned() + at;
    std::memcpy(packed, table.data(), table_bytes);
    for (size_t i = 0; i < runs.size(); ++i) {
      std::memcpy(packed + table_bytes + table[i].first * unit, runs[i].values, runs[i].offsets.size() * unit);
      std::memcpy(packed + offsets_from + table[i].first * sizeof(uint32_t), runs[i].offsets.data(),
                  runs[i].offsets.size_bytes());
    }
    LS_RETURN_IF_ERROR(StartUpload(at, bytes, lane));
    const std::byte* const there = lane.device() + at;
    return CudaStatus(kernels::cuda::StartScatter(data_, unit, reinterpret_cast<const kernels::cuda::UnitRun*>(there),
                                                  static_cast<uint32_t>(table.size()),
                                                  reinterpret_cast<const uint32_t*>(there + offsets_from),
                                                  there + table_bytes, count, lane.stream()),
                      "starting the scatter of changes");
  }

  static bool IsNarrow(const layout::StridedCopy& part) { return part.rows > 1 && part.row_bytes < kNarrowBytes; }

  // From the lane's pinned memory at `at`, where the rows are packed, to their places.
  Status StartCopyIn(const layout::StridedCopy& part, uint64_t at, StagingLane& lane) {
    std::byte* const to = data_ + part.target_offset;
    if (!IsNarrow(part)) {
      return StartCopy(to, part.target_pitch, lane.pinned() + at, part.row_bytes, part, cudaMemcpyHostToDevice,
                       lane.stream());
    }
    LS_RETURN_IF_ERROR(StartUpload(at, part.bytes(), lane));
    return CudaStatus(kernels::cuda::StartCopyRows(to, part.target_pitch, lane.device() + at, part.row_bytes, part.rows,
                                                   part.row_bytes, lane.stream()),
                      "starting the copy of narrow rows");
  }

  // The other way.
  Status StartCopyOut(const layout::StridedCopy& part, uint64_t at, StagingLane& lane) {
    const std::byte* const from = data_ + part.target_offset;
    if (!IsNarrow(part)) {
      return StartCopy(lane.pinned() + at, part.row_bytes, from, part.target_pitch, part, cudaMemcpyDeviceToHost,
                       lane.stream());
    }
    LS_RETURN_IF_ERROR(
        CudaStatus(kernels::cuda::StartCopyRows(lane.device() + at, part.row_bytes, from, part.target_pitch, part.rows,
                                                part.row_bytes, lane.stream()),
                   "starting the copy of narrow rows"));
    return CudaStatus(
        cudaMemcpyAsync(lane.pinned() + at, lane.device() + at, part.bytes(), cudaMemcpyDeviceToHost, lane.stream()),
        "starting the copy of packed rows");
  }

  static Status StartUpload(uint64_t at, uint64_t bytes, StagingLane& lane) {
    return CudaStatus(
        cudaMemcpyAsync(lane.device() + at, lane.pinned() + at, bytes, cudaMemcpyHostToDevice, lane.stream()),
        "starting the copy of staged memory");
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

Status LostGpu() {
  return gpu::LostGpu();
}

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

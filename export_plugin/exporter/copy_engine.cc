#include "export_plugin/exporter/copy_engine.h"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <unordered_set>
#include <vector>

#include "common/base/text.h"
#include "export_plugin/exporter/readable_memory.h"
#include "kernels/copy_rows.h"

namespace lockstep::exporter {
namespace {

// What one thread does at a time: large enough to be worth a hand-over, small enough to spread.
constexpr uint64_t kTaskBytes = uint64_t{1} << 20;
constexpr uint32_t kMaxThreads = 256;

void RunOne(const PlacedCopy& placed) {
  const layout::StridedCopy& copy = placed.copy;
  std::byte* target = placed.target + copy.target_offset;
  const std::byte* source = placed.source + copy.source_offset;
  switch (placed.conversion) {
    case ElementConversion::kNone:
      kernels::CopyRows(target, copy.target_pitch, source, copy.source_pitch, copy.rows, copy.row_bytes);
      break;
    case ElementConversion::kF32ToBF16:
      kernels::CopyRowsF32ToBF16(target, copy.target_pitch, source, copy.source_pitch, copy.rows, copy.row_bytes / 2);
      break;
    case ElementConversion::kBF16ToF32:
      kernels::CopyRowsBF16ToF32(target, copy.target_pitch, source, copy.source_pitch, copy.rows, copy.row_bytes / 4);
      break;
  }
}

class HostCopyEngine : public CopyEngine {
 public:
  // `trouble`: of NewCheckedHostEngine().
  explicit HostCopyEngine(WorkerPool* pool, Status trouble = {}, std::optional<ReadableMemory> readable = std::nullopt)
      : pool_(pool), trouble_(std::move(trouble)), readable_(std::move(readable)) {}

  Status Start(std::span<const PlacedCopy> copies) override {
    if (readable_) {
      checked_.clear();
      for (const PlacedCopy& placed : copies) {
        LS_RETURN_IF_ERROR(CheckReadable(placed.source, placed.copy.source_offset));
        LS_RETURN_IF_ERROR(CheckReadable(placed.target, placed.copy.target_offset));
      }
    }
    if (pool_ == nullptr) {
      for (const PlacedCopy& copy : copies) RunOne(copy);
      return OkStatus();
    }
    CutIntoTasks(copies);
    pool_->ParallelFor(ends_.size(), [this](size_t task) {
      for (size_t i = task == 0 ? 0 : ends_[task - 1]; i < ends_[task]; ++i) RunOne(parts_[i]);
    });
    return OkStatus();
  }

 private:
  // Asks once for each memory of a batch: tensors may move between calls.
  Status CheckReadable(const std::byte* memory, uint64_t offset) {
    if (!checked_.insert(memory).second) return OkStatus();
    LS_ASSIGN_OR_RETURN(const bool readable, readable_->Has(memory + offset));
    return readable ? OkStatus() : UnreadableStatus(memory + offset, trouble_);
  }

  // Small copies together, large ones in parts.
  void CutIntoTasks(std::span<const PlacedCopy> copies) {
    parts_.clear();
    ends_.clear();
    uint64_t task_bytes = 0;
    for (const PlacedCopy& placed : copies) {
      cut_.clear();
      layout::AppendSplit(placed.copy, kTaskBytes, ElementsOf(placed.conversion), cut_);
      for (const layout::StridedCopy& part : cut_) {
        if (task_bytes + part.bytes() > kTaskBytes && task_bytes > 0) {
          ends_.push_back(parts_.size());
          task_bytes = 0;
        }
        parts_.push_back({placed.source, placed.target, part, placed.conversion});
        task_bytes += part.bytes();
      }
    }
    if (task_bytes > 0) ends_.push_back(parts_.size());
  }

  WorkerPool* const pool_;
  const Status trouble_;
  std::optional<ReadableMemory> readable_;  // nothing: no memory is asked about
  std::unordered_set<const std::byte*> checked_;
  std::vector<PlacedCopy> parts_;
  std::vector<size_t> ends_;  // of each task in parts_
  std::vector<layout::StridedCopy> cut_;
};

}  // namespace

layout::ElementBytes ElementsOf(ElementConversion conversion) {
  switch (conversion) {
    case ElementConversion::kNone:
      return {1, 1};
    case ElementConversion::kF32ToBF16:
      return {4, 2};
    case ElementConversion::kBF16ToF32:
      return {2, 4};
  }
  return {1, 1};
}

uint32_t UsualCopyThreads(size_t ranks) {
  constexpr size_t kMost = 4;  // a few cores take all of a host's memory bandwidth
  cpu_set_t own;
  const bool known = ::sched_getaffinity(0, sizeof own, &own) == 0;
  const size_t cores = known ? static_cast<size_t>(CPU_COUNT(&own)) : std::thread::hardware_concurrency();
  return static_cast<uint32_t>(std::clamp<size_t>(cores / ranks, 1, kMost));
}

Result<std::unique_ptr<WorkerPool>> NewCopyPool(uint32_t threads) {
  if (threads == 0 || threads > kMaxThreads) {
    return Status(ErrorCode::kBadData, Cat("threads is ", threads, "; it must be from 1 to ", kMaxThreads));
  }
  return threads == 1 ? nullptr : std::make_unique<WorkerPool>(threads - 1);
}

std::unique_ptr<CopyEngine> NewHostCopyEngine(WorkerPool* pool) {
  return std::make_unique<HostCopyEngine>(pool);
}

Result<std::unique_ptr<CopyEngine>> NewCheckedHostEngine(WorkerPool* pool, Status trouble) {
  LS_ASSIGN_OR_RETURN(ReadableMemory readable, ReadableMemory::Create());
  return std::unique_ptr<CopyEngine>(std::make_unique<HostCopyEngine>(pool, std::move(trouble), std::move(readable)));
}

}  // namespace lockstep::exporter

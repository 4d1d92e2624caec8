#include <algorithm>
#include <cstring>

#include "kernels/copy_rows.h"
#include "kernels/scatter.h"
#include "raas_receiver/placement/memory/target_memory.h"

namespace lockstep::placement {
namespace {

// Everything is there when a call returns.
class HostMemory : public TargetMemory {
 public:
  explicit HostMemory(os::MappedSegment memory) : memory_(std::move(memory)) {}

  uint64_t bytes() const override { return memory_.bytes(); }

  Status Scatter(std::span<const ScatterRun> runs) override {
    for (const ScatterRun& run : runs) {
      kernels::ScatterUnits(memory_.data() + run.base, run.unit, run.offsets.data(), run.values, run.offsets.size());
    }
    return OkStatus();
  }

  Status Copy(std::span<const layout::StridedCopy> copies, const std::byte* source) override {
    for (const layout::StridedCopy& copy : copies) {
      kernels::CopyRows(memory_.data() + copy.target_offset, copy.target_pitch, source + copy.source_offset,
                        copy.source_pitch, copy.rows, copy.row_bytes);
    }
    return OkStatus();
  }

  Status Zero(std::span<const StridedRange> ranges) override {
    for (const StridedRange& range : ranges) {
      for (uint64_t row = 0; row < range.rows; ++row) {
        std::memset(memory_.data() + range.offset + row * range.pitch, 0, range.row_bytes);
      }
    }
    return OkStatus();
  }

  Status Finish() override { return OkStatus(); }

  Result<bool> Equal(std::span<const layout::StridedCopy> copies, const std::byte* source) override {
    for (const layout::StridedCopy& copy : copies) {
      for (uint64_t row = 0; row < copy.rows; ++row) {
        const std::byte* there = memory_.data() + copy.target_offset + row * copy.target_pitch;
        const std::byte* wanted = source + copy.source_offset + row * copy.source_pitch;
        if (std::memcmp(there, wanted, copy.row_bytes) != 0) return false;
      }
    }
    return true;
  }

  Result<bool> IsZero(std::span<const StridedRange> ranges) override {
    for (const StridedRange& range : ranges) {
      for (uint64_t row = 0; row < range.rows; ++row) {
        const std::byte* there = memory_.data() + range.offset + row * range.pitch;
        if (std::any_of(there, there + range.row_bytes, [](std::byte byte) { return byte != std::byte{0}; })) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  const os::MappedSegment memory_;
};

}  // namespace

std::unique_ptr<TargetMemory> NewHostMemory(os::MappedSegment memory) {
  return std::make_unique<HostMemory>(std::move(memory));
}

}  // namespace lockstep::placement

// CopyEngine: runs strided copies between memories that this process can reach.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/layout/strided_copy.h"

namespace lockstep::exporter {

// What happens to elements on the way.
enum class ElementConversion : uint8_t { kNone, kF32ToBF16, kBF16ToF32 };

layout::ElementBytes ElementsOf(ElementConversion conversion);  // 1 and 1 where bytes stay as they are

// One copy with the memories it is relative to.
struct PlacedCopy {
  const std::byte* source = nullptr;  // what source_offset counts from
  std::byte* target = nullptr;
  layout::StridedCopy copy;
  ElementConversion conversion = ElementConversion::kNone;
};

// Memory that a device copies to and from at full speed, as long as this lives; it goes before the memory does.
using PinnedMemory = std::shared_ptr<void>;

// Not thread-safe.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  // Everything is in place when it returns; after an error nothing is under way any more.
  virtual Status Run(std::span<const PlacedCopy> copies) = 0;

  // Null where that makes no difference, or cannot be had (the limit on locked memory): copies are slower then.
  virtual PinnedMemory Pin(std::span<std::byte>) { return nullptr; }
  // Whether the address is in a GPU's memory. Null is not.
  virtual bool OnDevice(const void*) { return false; }
  // Whether CPU and GPU share one memory, which buckets take from both.
  virtual bool unified_memory() const { return false; }
};

// The threads that copy beside the caller's: `threads` in all, null for 1. kBadData: 0, or more than 256.
Result<std::unique_ptr<WorkerPool>> NewCopyPool(uint32_t threads);

// Host memory, with the calling thread and `pool` (null: only the caller).
std::unique_ptr<CopyEngine> NewHostCopyEngine(WorkerPool* pool);

// For whatever memory this process has: in a build with CUDA, on a machine with a GPU, that of the GPU too, by a stream
// of the engine's own. Work queued on the tensors must be done before Run().
Result<std::unique_ptr<CopyEngine>> NewCopyEngine(WorkerPool* pool);

// Whether this is such a build.
extern const bool kCopiesFromGpu;

}  // namespace lockstep::exporter

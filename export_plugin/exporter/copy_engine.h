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

// Memory that a device copies to and from at full speed, as long as this lives; it goes before the memory does, and
// before the engine.
using PinnedMemory = std::shared_ptr<void>;

// Not thread-safe.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  // Starts a batch. What the CPU copies is in place when it returns, what a GPU copies may be under way until Wait().
  // `copies` is not used after it. REQUIRES fewer than most_under_way() batches that were not waited for, and that none
  // of what is under way writes where another reads or writes.
  //
  // After an error, here or in Wait(), no batch is under way any more.
  virtual Status Start(std::span<const PlacedCopy> copies) = 0;
  // Until the oldest batch that was not waited for is in place. REQUIRES that there is one.
  virtual Status Wait() { return OkStatus(); }
  // No batch is under way any more when it returns, and none is to be waited for, whatever became of them.
  virtual void Stop() {}
  virtual size_t most_under_way() const { return 1; }

  // Everything is in place when it returns; after an error nothing is under way any more. REQUIRES that nothing is.
  Status Run(std::span<const PlacedCopy> copies) {
    LS_RETURN_IF_ERROR(Start(copies));
    return Wait();
  }

  // Allocates the streams and the conversion slab of the GPU that owns the address. Else the first Start() does, and
  // CUDA may block that behind a running kernel of an exchange. kResourceExhausted, kIo.
  virtual Status PrepareBeside(const void*) { return OkStatus(); }
  // Pins `pieces`, all or none of them. Null where it makes no difference. kResourceExhausted, kIo: it cannot be had
  // (the driver's answer; no limit of the process counts); copies work, and are slower.
  virtual Result<PinnedMemory> Pin(std::span<const std::span<std::byte>>) { return PinnedMemory(); }
  // Whether the address is in a GPU's memory. Null is not.
  virtual bool OnDevice(const void*) { return false; }
  // Whether the GPU that owns the address has no memory apart from the CPU's.
  virtual bool OnUnifiedMemory(const void*) { return false; }
};

// The default number of copy threads: this host's cores shared by `ranks` processes, from 1 to 4. REQUIRES ranks >= 1.
uint32_t UsualCopyThreads(size_t ranks);

// The threads that copy beside the caller's: `threads` in all, null for 1. kBadData: 0, or more than 256.
Result<std::unique_ptr<WorkerPool>> NewCopyPool(uint32_t threads);

// Host memory, with the calling thread and `pool` (null: only the caller).
std::unique_ptr<CopyEngine> NewHostCopyEngine(WorkerPool* pool);

// The same for a process that reaches no GPU. The engine asks the kernel about every memory before it touches it:
// memory that the CPU cannot read, as a GPU's, is an error that carries `trouble`, not the end of the process. REQUIRES
// !trouble.ok().
Result<std::unique_ptr<CopyEngine>> NewCheckedHostEngine(WorkerPool* pool, Status trouble);

// For whatever memory this process has: in a build with CUDA, where CUDA finds a GPU, that of all its GPUs too, each by
// a stream of the engine's own; CUDA is first called when an address comes that the CPU cannot read. Work queued on the
// tensors must be done before Run() or Start(). Elsewhere that of the host: memory that the CPU cannot read is the
// error of GpuTrouble().
Result<std::unique_ptr<CopyEngine>> NewCopyEngine(WorkerPool* pool);

// OK where NewCopyEngine() copies from GPUs. Else why it does not, and what to do: kState in a build without CUDA,
// kNotFound where there is no GPU or no driver, kUnavailable where CUDA fails otherwise (a driver that is too old).
Status GpuTrouble();

// Whether this is a build with CUDA.
extern const bool kBuiltWithCuda;

}  // namespace lockstep::exporter

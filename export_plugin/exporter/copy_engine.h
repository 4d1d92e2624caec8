// CopyEngine: runs strided copies between memories that this process can reach.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/layout/strided_copy.h"

namespace lockstep::exporter {

// How a copy converts elements.
enum class ElementConversion : uint8_t { kNone, kF32ToBF16, kBF16ToF32 };

layout::ElementBytes ElementsOf(ElementConversion conversion);  // 1 and 1 where bytes stay as they are

// A copy, and the two memories that its offsets count from.
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

  // Starts a batch. CPU copies are in place when Start() returns; GPU copies may be under way until Wait(). `copies` is
  // not used after Start() has returned. REQUIRES fewer than most_under_way() batches that were not waited for, and
  // that no copy under way writes where another reads or writes.
  //
  // After an error of Start() or Wait(), no batch is under way any more.
  virtual Status Start(std::span<const PlacedCopy> copies) = 0;
  // Waits until the oldest batch that was not waited for is in place. REQUIRES such a batch.
  virtual Status Wait() { return OkStatus(); }
  // Waits for all batches, whether they fail or not. The caller needs to wait for none of them any more.
  virtual void Stop() {}
  virtual size_t most_under_way() const { return 1; }

  // Runs one batch and waits for it. REQUIRES that no batch is under way.
  Status Run(std::span<const PlacedCopy> copies) {
    LS_RETURN_IF_ERROR(Start(copies));
    return Wait();
  }

  // Allocates the streams and the conversion slab of the GPU that owns `address`; does nothing for host memory. Without
  // this call the first Start() allocates them, and CUDA may block that Start() behind a running kernel of an exchange.
  // kResourceExhausted, kIo.
  virtual Status PrepareGpuOf(const void* /*address*/) { return OkStatus(); }
  // Pins all of `pieces`. Returns null where pinning makes no difference. kResourceExhausted, kIo: the driver refused,
  // whatever limits the process has; no piece is pinned, and copies work, but are slower.
  virtual Result<PinnedMemory> Pin(std::span<const std::span<std::byte>>) { return PinnedMemory(); }
  // Whether the address is in a GPU's memory; false for null.
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

// A host copy engine for a process that reaches no GPU. The engine asks the kernel about every memory before it touches
// it. Memory that the CPU cannot read, such as a GPU's, is then an error that carries `trouble`, and does not crash the
// process. REQUIRES !trouble.ok().
Result<std::unique_ptr<CopyEngine>> NewCheckedHostEngine(WorkerPool* pool, Status trouble);

// An engine for all memory that this process has. In a build with CUDA, where CUDA finds a GPU, that includes every
// GPU's memory, copied by streams of the engine's own. The engine first calls CUDA when it gets an address that the CPU
// cannot read. Work queued on the tensors must be done before Run() or Start(). Elsewhere the engine copies host
// memory, and other memory is the error of GpuTrouble().
Result<std::unique_ptr<CopyEngine>> NewCopyEngine(WorkerPool* pool);

// OK where NewCopyEngine() copies from GPUs. Else why it does not, and what to do: kState in a build without CUDA,
// kNotFound where there is no GPU or no driver, kUnavailable where CUDA fails otherwise (a driver that is too old).
Status GpuTrouble();

// Whether this is a build with CUDA.
extern const bool kBuiltWithCuda;

}  // namespace lockstep::exporter

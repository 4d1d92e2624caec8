// One GPU as its memories share it: streams with staging memory, and the allocations of other processes that are open.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/gpu/gpu_status.h"

namespace lockstep::placement {

using gpu::CudaStatus;

// A stream, and memory on both sides of the bus: filled by the CPU, taken over by copies and kernels of the stream.
// What is taken of it stays taken, whoever has borrowed the lane, until it starts anew.
class StagingLane {
 public:
  static constexpr uint64_t kBytes = uint64_t{8} << 20;

  static Result<std::unique_ptr<StagingLane>> Create();
  ~StagingLane();
  StagingLane(const StagingLane&) = delete;
  StagingLane& operator=(const StagingLane&) = delete;

  cudaStream_t stream() const { return stream_; }
  std::byte* pinned() const { return pinned_; }
  std::byte* device() const { return device_; }

  // Where the next `bytes` of its memory begin, aligned to any unit; none when so many are not left.
  std::optional<uint64_t> Take(uint64_t bytes);
  // What Take has left to give.
  uint64_t room() const { return kBytes - taken_; }
  // Waits for all that the stream has been given: the whole memory can be taken again.
  Status Renew();
  // Waits for the same.
  Status Wait();

 private:
  StagingLane() = default;

  cudaStream_t stream_ = nullptr;
  std::byte* pinned_ = nullptr;
  std::byte* device_ = nullptr;
  uint64_t taken_ = 0;
};

using IpcHandle = std::array<uint8_t, 64>;

// An allocation of another process, mapped here until its owner goes.
class IpcAllocation {
 public:
  // REQUIRES device `ordinal` to be the calling thread's. kBadData for a handle that no process has given out.
  static Result<std::shared_ptr<IpcAllocation>> Open(const IpcHandle& handle, int ordinal);
  ~IpcAllocation();
  IpcAllocation(const IpcAllocation&) = delete;
  IpcAllocation& operator=(const IpcAllocation&) = delete;

  std::byte* base() const { return static_cast<std::byte*>(base_); }
  uint64_t bytes() const { return bytes_; }

 private:
  IpcAllocation(void* base, int ordinal) : base_(base), ordinal_(ordinal) {}

  void* const base_;
  const int ordinal_;
  uint64_t bytes_ = 0;
};

// Thread-safe.
class CudaGpu {
 public:
  // The GPU of that UUID ("GPU-" before it or not); one object for each, for as long as somebody holds it: a GPU's
  // context is the process's, and so is what copies into it may take. Its kernels have run once: what a first launch
  // loads is loaded. kUnavailable, or kNotFound, when there is none, saying why.
  static Result<std::shared_ptr<CudaGpu>> Find(const std::string& uuid);

  // Makes this GPU the calling thread's.
  Status Enter() const;
  // The handle's allocation; several memories may lie in one. REQUIRES Enter. As IpcAllocation::Open.
  Result<std::shared_ptr<IpcAllocation>> Open(const IpcHandle& handle);

  // A lane that is the caller's until given back; its stream may still be busy.
  StagingLane* Borrow();
  void GiveBack(StagingLane* lane);
  // Waits for everything that all lanes have been given; those that nobody has borrowed are empty then. REQUIRES Enter,
  // and that no lane is borrowed by somebody who waits for this.
  Status WaitForAll();

 private:
  static constexpr size_t kLanes = 4;

  explicit CudaGpu(int ordinal) : ordinal_(ordinal) {}

  Status AddLanes();
  Status LoadKernels();

  const int ordinal_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<StagingLane>> lanes_;
  std::vector<StagingLane*> idle_;
  std::map<IpcHandle, std::weak_ptr<IpcAllocation>> open_;
};

}  // namespace lockstep::placement

// NewCopyEngine() of builds with CUDA.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "common/base/text.h"
#include "export_plugin/exporter/device_streams.h"
#include "export_plugin/exporter/readable_memory.h"

namespace lockstep::exporter {
namespace {

constexpr int kHost = -1;  // in place of a device

// What was pinned; outlives neither the memory nor the engine.
class Registration {
 public:
  explicit Registration(PinnedRanges* ranges) : ranges_(ranges) {}
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() {
    for (std::byte* piece : pieces_) {
      ranges_->Remove(piece);
      (void)cudaHostUnregister(piece);
    }
  }

  Status Add(std::span<std::byte> piece) {
    const cudaError_t error = cudaHostRegister(piece.data(), piece.size(), cudaHostRegisterPortable);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return CudaStatus(error, Cat("pinning ", piece.size(), " bytes after ", pieces_.size(), " pieces"));
    }
    pieces_.push_back(piece.data());
    ranges_->Add(piece);
    return OkStatus();
  }

 private:
  PinnedRanges* const ranges_;
  std::vector<std::byte*> pieces_;
};

// Calls nothing of CUDA before it meets memory that the CPU cannot read: that would make a context on a GPU that has
// none of the tensors, and forked processes could not use CUDA.
class CudaCopyEngine : public CopyEngine {
 public:
  CudaCopyEngine(WorkerPool* pool, ReadableMemory readable)
      : host_(NewHostCopyEngine(pool)), readable_(std::move(readable)) {}

  ~CudaCopyEngine() override {
    Stop();
    CurrentDevice current;
    for (auto& [device, streams] : devices_) {
      if (current.Set(device).ok()) streams.reset();
    }
  }

  // The GPUs' copies are under way while the CPU does its own.
  Status Start(std::span<const PlacedCopy> copies) override {
    Batch& batch = batches_[started_ % batches_.size()];
    batch.clear();
    const Status status = StartAll(copies, batch);
    if (status.ok()) {
      ++started_;
    } else {
      Stop();
    }
    return status;
  }

  Status Wait() override {
    CurrentDevice current;
    const size_t index = waited_ % batches_.size();
    for (DeviceStreams* streams : batches_[index]) {
      Status status = current.Set(streams->device());
      if (status.ok()) status = streams->WaitFor(index);
      if (status.ok()) continue;
      Stop();
      return status;
    }
    ++waited_;
    return OkStatus();
  }

  // Also of streams that fail: what they had under way ends with the device.
  void Stop() override {
    CurrentDevice current;
    for (const auto& [device, streams] : devices_) {
      (void)current.Set(device);
      (void)streams->Drain();
    }
    waited_ = started_;
  }

  size_t most_under_way() const override { return DeviceStreams::kBatches; }

  Status PrepareGpuOf(const void* address) override {
    CurrentDevice current;
    LS_ASSIGN_OR_RETURN(const int device, DeviceOf(address, current));
    if (device == kHost) return OkStatus();
    LS_RETURN_IF_ERROR(current.Set(device));
    LS_ASSIGN_OR_RETURN(DeviceStreams * streams, StreamsOf(device));
    return streams->Prepare();
  }

  Result<PinnedMemory> Pin(std::span<const std::span<std::byte>> pieces) override {
    CurrentDevice current;
    if (device_ != kHost) LS_RETURN_IF_ERROR(current.Set(device_));
    auto registration = std::make_shared<Registration>(&pinned_);
    for (const std::span<std::byte> piece : pieces) {
      if (!piece.empty()) LS_RETURN_IF_ERROR(registration->Add(piece));
    }
    return PinnedMemory(std::move(registration));
  }

  bool OnDevice(const void* address) override {
    CurrentDevice current;
    const Result<int> device = DeviceOf(address, current);
    return device.ok() && *device != kHost;  // Start() says what is wrong
  }

  bool OnUnifiedMemory(const void* address) override {
    int integrated = 0;
    return OnDevice(address) && cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, device_) == cudaSuccess &&
           integrated != 0;
  }

 private:
  using Batch = std::vector<DeviceStreams*>;  // those that have to do with it

  Status StartAll(std::span<const PlacedCopy> copies, Batch& batch) {
    CurrentDevice current;
    on_host_.clear();
    known_.clear();
    for (const PlacedCopy& placed : copies) {
      LS_ASSIGN_OR_RETURN(const int from, KnownDeviceOf(placed.source, placed.copy.source_offset, current));
      LS_ASSIGN_OR_RETURN(const int to, KnownDeviceOf(placed.target, placed.copy.target_offset, current));
      if (from == kHost && to == kHost) {
        on_host_.push_back(placed);
        continue;
      }
      const int device = from != kHost ? from : to;
      LS_RETURN_IF_ERROR(current.Set(device));
      LS_ASSIGN_OR_RETURN(DeviceStreams * streams, StreamsOf(device));
      if (std::find(batch.begin(), batch.end(), streams) == batch.end()) batch.push_back(streams);
      LS_RETURN_IF_ERROR(streams->Start(placed, from == device, to == device, pinned_));
    }
    for (DeviceStreams* streams : batch) {
      LS_RETURN_IF_ERROR(current.Set(streams->device()));
      LS_RETURN_IF_ERROR(streams->Mark(started_ % batches_.size()));
    }
    return host_->Run(on_host_);
  }

  // REQUIRES `device` to be current.
  Result<DeviceStreams*> StreamsOf(int device) {
    const auto known = devices_.find(device);
    if (known != devices_.end()) return known->second.get();
    LS_ASSIGN_OR_RETURN(auto streams, DeviceStreams::Create(device));
    return (devices_[device] = std::move(streams)).get();
  }

  // Asked once for each address of a batch: tensors may move between calls.
  Result<int> KnownDeviceOf(const std::byte* memory, uint64_t offset, CurrentDevice& current) {
    const auto known = known_.find(memory);
    if (known != known_.end()) return known->second;
    LS_ASSIGN_OR_RETURN(const int device, DeviceOf(memory + offset, current));
    return known_[memory] = device;
  }

  // The GPU that has the address in memory of its own; kHost: no GPU has. `current` may be on any device afterwards.
  Result<int> DeviceOf(const void* address, CurrentDevice& current) {
    if (address == nullptr) return kHost;
    if (!asks_cuda_) {
      LS_ASSIGN_OR_RETURN(const bool readable, readable_.Has(address));
      if (readable) return kHost;
      if (const Status trouble = GpuTrouble(); !trouble.ok()) return UnreadableStatus(address, trouble);
      asks_cuda_ = true;
    }
    LS_RETURN_IF_ERROR(current.SetAnyWithContext());
    cudaPointerAttributes attributes{};
    const cudaError_t error = cudaPointerGetAttributes(&attributes, address);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return CudaStatus(error, Cat("asking where the tensor at ", address, " lies"));
    }
    if (attributes.type != cudaMemoryTypeDevice) return kHost;
    return device_ = attributes.device;
  }

  const std::unique_ptr<CopyEngine> host_;
  ReadableMemory readable_;
  bool asks_cuda_ = false;
  std::unordered_map<int, std::unique_ptr<DeviceStreams>> devices_;  // by device, once something was on it
  std::array<Batch, DeviceStreams::kBatches> batches_;
  uint64_t started_ = 0;
  uint64_t waited_ = 0;
  PinnedRanges pinned_;
  int device_ = kHost;  // the last one that a tensor was found on
  std::vector<PlacedCopy> on_host_;
  std::unordered_map<const void*, int> known_;
};

}  // namespace

const bool kBuiltWithCuda = true;

Status GpuTrouble() {
  return gpu::GpuTrouble();
}

Result<std::unique_ptr<CopyEngine>> NewCopyEngine(WorkerPool* pool) {
  LS_ASSIGN_OR_RETURN(ReadableMemory readable, ReadableMemory::Create());
  return std::unique_ptr<CopyEngine>(std::make_unique<CudaCopyEngine>(pool, std::move(readable)));
}

}  // namespace lockstep::exporter

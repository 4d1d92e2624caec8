#include "raas_receiver/placement/memory/cuda_gpu.h"

#include <cuda.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "common/base/text.h"
#include "kernels/cuda/scatter.h"

namespace lockstep::placement {
namespace {

// What pieces of staging memory are aligned to: any unit.
constexpr uint64_t kAlignment = 8;
static_assert(StagingLane::kBytes % kAlignment == 0);

std::string UuidText(const cudaUUID_t& uuid) {
  std::string text;
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<uint8_t>(uuid.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// As UuidText writes it.
std::string Normal(std::string uuid) {
  if (uuid.starts_with("GPU-")) uuid.erase(0, 4);
  std::transform(uuid.begin(), uuid.end(), uuid.begin(), [](unsigned char c) { return std::tolower(c); });
  return uuid;
}

Result<int> OrdinalOf(const std::string& uuid) {
  LS_RETURN_IF_ERROR(gpu::GpuTrouble());
  int devices = 0;
  LS_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&devices), "counting GPUs"));
  std::string seen;
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    cudaDeviceProp properties{};
    LS_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "asking for a GPU's UUID"));
    if (UuidText(properties.uuid) == Normal(uuid)) return ordinal;
    seen += Cat(seen.empty() ? "" : ", ", UuidText(properties.uuid));
  }
  return Status(ErrorCode::kUnavailable,
                Cat("GPU ", uuid, " is none of those that this process sees (", seen,
                    "): give the receiver the engine's GPUs; of MIG instances CUDA shows a process one, so run a "
                    "receiver for each, with the engine's CUDA_VISIBLE_DEVICES"));
}

// How much of its allocation lies from `base` on. The runtime has no call for it, the driver has.
Result<uint64_t> BytesFrom(void* base) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  LS_RETURN_IF_ERROR(
      CudaStatus(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &entry, 12000, cudaEnableDefault, &found),
                 "asking the driver for cuMemGetAddressRange"));
  if (found != cudaDriverEntryPointSuccess) {
    return Status(ErrorCode::kUnavailable, "CUDA: this driver has no cuMemGetAddressRange");
  }
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  const auto range = reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr)>(entry);
  const CUresult error = range(&begin, &bytes, reinterpret_cast<CUdeviceptr>(base));
  if (error != CUDA_SUCCESS) {
    return Status(ErrorCode::kIo, Cat("CUDA: asking for an allocation's size: error ", static_cast<int>(error)));
  }
  return begin + bytes - reinterpret_cast<CUdeviceptr>(base);
}

}  // namespace

Result<std::unique_ptr<StagingLane>> StagingLane::Create() {
  std::unique_ptr<StagingLane> lane(new StagingLane);
  void* pinned = nullptr;
  void* device = nullptr;
  LS_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&lane->stream_, cudaStreamNonBlocking), "creating a stream"));
  LS_RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&pinned, kBytes), "allocating pinned memory"));
  lane->pinned_ = static_cast<std::byte*>(pinned);
  LS_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&device, kBytes), "allocating staging memory on the GPU"));
  lane->device_ = static_cast<std::byte*>(device);
  return lane;
}

StagingLane::~StagingLane() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  if (pinned_ != nullptr) (void)cudaFreeHost(pinned_);
  if (device_ != nullptr) (void)cudaFree(device_);
}

std::optional<uint64_t> StagingLane::Take(uint64_t bytes) {
  if (bytes > room()) return std::nullopt;
  const uint64_t at = taken_;
  taken_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

Status StagingLane::Renew() {
  LS_RETURN_IF_ERROR(Wait());
  taken_ = 0;
  return OkStatus();
}

Status StagingLane::Wait() {
  return CudaStatus(cudaStreamSynchronize(stream_), "writing into GPU memory");
}

Result<std::shared_ptr<IpcAllocation>> IpcAllocation::Open(const IpcHandle& handle, int ordinal) {
  cudaIpcMemHandle_t ipc;
  static_assert(sizeof ipc == sizeof handle);
  std::memcpy(&ipc, handle.data(), sizeof ipc);
  void* base = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&base, ipc, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    const Status status = CudaStatus(error, "opening another process' memory");
    return error == cudaErrorMemoryAllocation ? status : Status(ErrorCode::kBadData, status.message());
  }
  std::shared_ptr<IpcAllocation> allocation(new IpcAllocation(base, ordinal));
  LS_ASSIGN_OR_RETURN(allocation->bytes_, BytesFrom(base));
  return allocation;
}

IpcAllocation::~IpcAllocation() {
  (void)cudaSetDevice(ordinal_);
  (void)cudaIpcCloseMemHandle(base_);
}

Result<std::shared_ptr<CudaGpu>> CudaGpu::Find(const std::string& uuid) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<CudaGpu>> gpus;
  LS_ASSIGN_OR_RETURN(const int ordinal, OrdinalOf(uuid));
  std::lock_guard lock(mutex);
  if (auto known = gpus[ordinal].lock()) return known;
  std::shared_ptr<CudaGpu> gpu(new CudaGpu(ordinal));
  LS_RETURN_IF_ERROR(gpu->Enter());
  LS_RETURN_IF_ERROR(gpu->AddLanes());
  LS_RETURN_IF_ERROR(gpu->LoadKernels());
  gpus[ordinal] = gpu;
  return gpu;
}

Status CudaGpu::AddLanes() {
  for (size_t i = 0; i < kLanes; ++i) {
    LS_ASSIGN_OR_RETURN(auto lane, StagingLane::Create());
    idle_.push_back(lane.get());
    lanes_.push_back(std::move(lane));
  }
  return OkStatus();
}

// By a launch of each, over a lane's memory, which nobody reads.
Status CudaGpu::LoadKernels() {
  constexpr std::string_view kWhat = "loading kernels";
  StagingLane& lane = *lanes_.front();
  LS_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(lane.device(), 0, StagingLane::kBytes, lane.stream()), kWhat));
  const auto* const run = reinterpret_cast<const kernels::cuda::UnitRun*>(lane.device());
  const auto* const offset = reinterpret_cast<const uint32_t*>(lane.device() + sizeof *run);
  std::byte* const unit_at = lane.device() + 64;
  for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
    LS_RETURN_IF_ERROR(
        CudaStatus(kernels::cuda::StartScatter(unit_at, unit, run, 1, offset, unit_at + 64, 1, lane.stream()), kWhat));
    LS_RETURN_IF_ERROR(
        CudaStatus(kernels::cuda::StartCopyRows(unit_at, unit, unit_at + 64, unit, 1, unit, lane.stream()), kWhat));
  }
  return lane.Wait();
}

Status CudaGpu::Enter() const {
  return CudaStatus(cudaSetDevice(ordinal_), Cat("taking device ", ordinal_));
}

Result<std::shared_ptr<IpcAllocation>> CudaGpu::Open(const IpcHandle& handle) {
  std::lock_guard lock(mutex_);
  if (auto known = open_[handle].lock()) return known;
  LS_ASSIGN_OR_RETURN(auto allocation, IpcAllocation::Open(handle, ordinal_));
  open_[handle] = allocation;
  return allocation;
}

StagingLane* CudaGpu::Borrow() {
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [this] { return !idle_.empty(); });
  StagingLane* const lane = idle_.front();
  idle_.erase(idle_.begin());
  return lane;
}

void CudaGpu::GiveBack(StagingLane* lane) {
  {
    std::lock_guard lock(mutex_);
    idle_.push_back(lane);
  }
  returned_.notify_one();
}

Status CudaGpu::WaitForAll() {
  std::lock_guard lock(mutex_);
  Status first;
  for (const auto& lane : lanes_) {
    const bool idle = std::find(idle_.begin(), idle_.end(), lane.get()) != idle_.end();
    const Status status = idle ? lane->Renew() : lane->Wait();
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace lockstep::placement

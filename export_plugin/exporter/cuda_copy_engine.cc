// NewCopyEngine() of builds with CUDA.
#include <cuda_runtime_api.h>

#include <unordered_map>
#include <vector>

#include "common/base/text.h"
#include "export_plugin/exporter/copy_engine.h"

namespace lockstep::exporter {
namespace {

// Conversions run on the CPU, through pinned memory of this size.
constexpr uint64_t kStagingBytes = uint64_t{4} << 20;

Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  const bool memory = error == cudaErrorMemoryAllocation;
  return {memory ? ErrorCode::kResourceExhausted : ErrorCode::kIo,
          Cat("CUDA: ", what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error))};
}

class CudaCopyEngine : public CopyEngine {
 public:
  explicit CudaCopyEngine(WorkerPool* pool) : host_(NewHostCopyEngine(pool)) {}

  ~CudaCopyEngine() override {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    if (staging_ != nullptr) (void)cudaFreeHost(staging_);
  }

  Status Initialise(int device) {
    int integrated = 0;
    LS_RETURN_IF_ERROR(
        CudaStatus(cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, device), "asking for the device"));
    unified_memory_ = integrated != 0;
    return CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }

  // The GPU's copies are under way while the CPU does its own.
  Status Run(std::span<const PlacedCopy> copies) override {
    const Status status = RunAll(copies);
    const cudaError_t finished = cudaStreamSynchronize(stream_);  // also after an error: started ones use the memory
    return status.ok() ? CudaStatus(finished, "waiting for copies") : status;
  }

  PinnedMemory Pin(std::span<std::byte> memory) override {
    if (memory.empty()) return nullptr;
    if (cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    return {memory.data(), [](void* registered) { (void)cudaHostUnregister(registered); }};
  }

  bool OnDevice(const void* address) override {
    cudaPointerAttributes attributes{};
    if (address == nullptr) return false;
    if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
      (void)cudaGetLastError();  // Run() will say so
      return false;
    }
    return attributes.type == cudaMemoryTypeDevice;
  }

  bool unified_memory() const override { return unified_memory_; }

 private:
  Status RunAll(std::span<const PlacedCopy> copies) {
    on_host_.clear();
    std::vector<PlacedCopy> converted;
    on_device_.clear();
    for (const PlacedCopy& placed : copies) {
      LS_ASSIGN_OR_RETURN(const bool from_device, KnownOnDevice(placed.source));
      LS_ASSIGN_OR_RETURN(const bool to_device, KnownOnDevice(placed.target));
      if (!from_device && !to_device) {
        on_host_.push_back(placed);
      } else if (placed.conversion != ElementConversion::kNone) {
        converted.push_back(placed);
      } else {
        LS_RETURN_IF_ERROR(CopyAsync(placed.target + placed.copy.target_offset, placed.copy.target_pitch,
                                     placed.source + placed.copy.source_offset, placed.copy.source_pitch,
                                     placed.copy.rows, placed.copy.row_bytes));
      }
    }
    LS_RETURN_IF_ERROR(host_->Run(on_host_));
    for (const PlacedCopy& placed : converted) LS_RETURN_IF_ERROR(Convert(placed));
    return OkStatus();
  }

  // Whether only the GPU reaches `address`. Asked once for each address of a Run(): tensors may move between calls.
  Result<bool> KnownOnDevice(const void* address) {
    const auto known = on_device_.find(address);
    if (known != on_device_.end()) return known->second;
    cudaPointerAttributes attributes{};
    LS_RETURN_IF_ERROR(CudaStatus(cudaPointerGetAttributes(&attributes, address), "asking where a tensor lies"));
    return on_device_[address] = attributes.type == cudaMemoryTypeDevice;
  }

  Status CopyAsync(void* target, uint64_t target_pitch, const void* source, uint64_t source_pitch, uint64_t rows,
                   uint64_t row_bytes) {
    constexpr std::string_view kWhat = "starting a copy";
    if (rows == 1) return CudaStatus(cudaMemcpyAsync(target, source, row_bytes, cudaMemcpyDefault, stream_), kWhat);
    if (source_pitch >= row_bytes) {
      return CudaStatus(
          cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, row_bytes, rows, cudaMemcpyDefault, stream_),
          kWhat);
    }
    // Rows that share a source: zeros.
    for (uint64_t row = 0; row < rows; ++row) {
      auto* to = static_cast<std::byte*>(target) + row * target_pitch;
      const auto* from = static_cast<const std::byte*>(source) + row * source_pitch;
      LS_RETURN_IF_ERROR(CopyAsync(to, 0, from, 0, 1, row_bytes));
    }
    return OkStatus();
  }

  // Part by part: the source's rows side by side into staging memory, converted there, and on to the target's rows.
  Status Convert(const PlacedCopy& placed) {
    if (staging_ == nullptr) {
      LS_RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&staging_, 2 * kStagingBytes), "allocating staging memory"));
    }
    const layout::ElementBytes element = ElementsOf(placed.conversion);
    std::vector<layout::StridedCopy> parts;
    layout::AppendSplit(placed.copy, kStagingBytes * element.target / 4, element, parts);
    for (const layout::StridedCopy& part : parts) {
      auto* before = static_cast<std::byte*>(staging_);
      std::byte* after = before + kStagingBytes;
      const uint64_t source_row = part.row_bytes / element.target * element.source;
      LS_RETURN_IF_ERROR(
          CopyAsync(before, source_row, placed.source + part.source_offset, part.source_pitch, part.rows, source_row));
      LS_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "staging elements to convert"));
      const PlacedCopy packed{before, after, {.row_bytes = part.bytes()}, placed.conversion};
      LS_RETURN_IF_ERROR(host_->Run({&packed, 1}));
      LS_RETURN_IF_ERROR(CopyAsync(placed.target + part.target_offset, part.target_pitch, after, part.row_bytes,
                                   part.rows, part.row_bytes));
      LS_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "placing converted elements"));
    }
    return OkStatus();
  }

  const std::unique_ptr<CopyEngine> host_;
  cudaStream_t stream_ = nullptr;
  void* staging_ = nullptr;
  bool unified_memory_ = false;
  std::vector<PlacedCopy> on_host_;
  std::unordered_map<const void*, bool> on_device_;
};

}  // namespace

const bool kCopiesFromGpu = true;

Result<std::unique_ptr<CopyEngine>> NewCopyEngine(WorkerPool* pool) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    (void)cudaGetLastError();  // no driver or no GPU: everything is host memory
    return NewHostCopyEngine(pool);
  }
  int device = 0;
  LS_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "asking for the device"));
  auto engine = std::make_unique<CudaCopyEngine>(pool);
  LS_RETURN_IF_ERROR(engine->Initialise(device));
  return std::unique_ptr<CopyEngine>(std::move(engine));
}

}  // namespace lockstep::exporter

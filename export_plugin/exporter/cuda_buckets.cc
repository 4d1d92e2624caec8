// NewDeviceBuckets() of builds with CUDA.
#include <cuda_runtime_api.h>

#include <numeric>
#include <vector>

#include "common/base/text.h"
#include "export_plugin/exporter/bucket_memory.h"
#include "export_plugin/exporter/device_streams.h"
#include "kernels/cuda/sum.h"

namespace lockstep::exporter {
namespace {

using kernels::cuda::kSumParts;

// A stream of its own: neither the trainer's work nor the exchange's is waited for.
class DeviceBuckets : public BucketMemory {
 public:
  static Result<std::unique_ptr<BucketMemory>> Create(int device, uint64_t payload_bytes) {
    std::unique_ptr<DeviceBuckets> buckets(new DeviceBuckets(device, payload_bytes));
    CurrentDevice current;
    LS_RETURN_IF_ERROR(current.Set(device));
    LS_RETURN_IF_ERROR(buckets->Allocate());
    return std::unique_ptr<BucketMemory>(std::move(buckets));
  }

  ~DeviceBuckets() override {
    CurrentDevice current;
    if (!current.Set(device_).ok()) return;
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    if (parts_ != nullptr) (void)cudaFree(parts_);
    if (memory_ != nullptr) (void)cudaFree(memory_);
  }

  Result<BucketHeader> ReadHeader(const std::byte* message) override {
    BucketHeader header;
    LS_RETURN_IF_ERROR(Copy(&header, message, sizeof(header), "reading a bucket's header"));
    return header;
  }
  Status WriteHeader(std::byte* message, const BucketHeader& header) override {
    return Copy(message, &header, sizeof(header), "writing a bucket's header");
  }

  Result<uint64_t> PayloadHash(size_t slot, uint64_t bytes) override {
    CurrentDevice current;
    LS_RETURN_IF_ERROR(current.Set(device_));
    LS_RETURN_IF_ERROR(CheckCuda(kernels::cuda::StartSum(payload(slot), bytes, static_cast<uint64_t*>(parts_), stream_),
                                 "summing a bucket"));
    LS_RETURN_IF_ERROR(Copy(sums_.data(), parts_, kSumParts * sizeof(uint64_t), "reading a bucket's sum"));
    return std::accumulate(sums_.begin(), sums_.end(), uint64_t{0});
  }
  BucketKind bucket_kind() const override { return BucketKind::kDeviceBucket; }

  bool on_device() const override { return true; }
  Status PinFor(CopyEngine&) override { return OkStatus(); }  // of the GPU's own
  bool pinned() const override { return true; }

 private:
  DeviceBuckets(int device, uint64_t payload_bytes) : BucketMemory(payload_bytes), device_(device), sums_(kSumParts) {}

  Status CheckCuda(cudaError_t error, std::string_view what) const {
    return error == cudaSuccess ? OkStatus() : CudaStatus(error, Cat(what, " (device ", device_, ")"));
  }

  Status Allocate() {
    const std::string what = Cat("allocating ", allocation_bytes(), " bytes for the exchange's buckets");
    LS_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&memory_, allocation_bytes()), what));
    LS_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&parts_, kSumParts * sizeof(uint64_t)), "allocating a bucket's sums"));
    SetMemory(static_cast<std::byte*>(memory_));
    LS_RETURN_IF_ERROR(CheckCuda(kernels::cuda::LoadSum(), "loading what sums a bucket"));
    return CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }

  Status Copy(void* to, const void* from, uint64_t bytes, std::string_view what) {
    CurrentDevice current;
    LS_RETURN_IF_ERROR(current.Set(device_));
    LS_RETURN_IF_ERROR(CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), what));
    return CheckCuda(cudaStreamSynchronize(stream_), what);
  }

  const int device_;
  void* memory_ = nullptr;
  void* parts_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::vector<uint64_t> sums_;
};

}  // namespace

Result<std::unique_ptr<BucketMemory>> NewDeviceBuckets(int device, uint64_t payload_bytes) {
  LS_RETURN_IF_ERROR(GpuTrouble());
  return DeviceBuckets::Create(device, payload_bytes);
}

}  // namespace lockstep::exporter

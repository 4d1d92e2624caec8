#include "common/gpu/gpu_status.h"

#include "common/base/text.h"

namespace lockstep::gpu {
namespace {

std::string VersionText(int version) {
  return Cat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  const bool memory = error == cudaErrorMemoryAllocation;
  return {memory ? ErrorCode::kResourceExhausted : ErrorCode::kIo,
          Cat("CUDA: ", what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error))};
}

// CUDA says the same of a driver that is missing and of one that is too old; only the former has no version.
Status GpuTrouble() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return OkStatus();
  (void)cudaGetLastError();
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    return {ErrorCode::kNotFound, "CUDA finds no GPU: see what nvidia-smi, CUDA_VISIBLE_DEVICES and the container say"};
  }
  int driver = 0;
  const bool knows_driver = cudaDriverGetVersion(&driver) == cudaSuccess;
  if (error == cudaErrorInsufficientDriver && knows_driver && driver == 0) {
    return {ErrorCode::kNotFound, "CUDA finds no driver: install NVIDIA's, or give the container its GPUs"};
  }
  if (error == cudaErrorInsufficientDriver) {
    return {ErrorCode::kUnavailable,
            Cat("the driver is for CUDA ", VersionText(driver), ", older than ", VersionText(CUDART_VERSION),
                ", which this build of Lockstep has: update the driver, or take a build with an older CUDA")};
  }
  return {ErrorCode::kUnavailable,
          CudaStatus(error, "looking for GPUs").message() + "; see what nvidia-smi and the kernel's log say"};
}

}  // namespace lockstep::gpu

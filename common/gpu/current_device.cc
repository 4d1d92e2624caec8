#include "common/gpu/current_device.h"

#include <cuda.h>

#include "common/base/text.h"
#include "common/gpu/gpu_status.h"

namespace lockstep::gpu {

// The runtime has no call for it, the driver has.
bool HasContext(int device) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &entry, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return false;
  unsigned flags = 0;
  int active = 0;
  const auto state = reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(entry);
  return state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

CurrentDevice::~CurrentDevice() {
  if (now_ != before_ && HasContext(before_)) (void)cudaSetDevice(before_);
}

Status CurrentDevice::Set(int device) {
  LS_RETURN_IF_ERROR(Ask());
  if (now_ == device) return OkStatus();
  LS_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), Cat("taking device ", device)));
  now_ = device;
  return OkStatus();
}

Status CurrentDevice::SetAnyWithContext() {
  LS_RETURN_IF_ERROR(Ask());
  if (HasContext(now_)) return OkStatus();
  int devices = 0;
  LS_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&devices), "counting GPUs"));
  for (int device = 0; device < devices; ++device) {
    if (HasContext(device)) return Set(device);
  }
  return OkStatus();
}

Status CurrentDevice::Ask() {
  if (before_ >= 0) return OkStatus();
  int device = 0;
  LS_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "asking for the current device"));
  before_ = now_ = device;
  return OkStatus();
}

}  // namespace lockstep::gpu

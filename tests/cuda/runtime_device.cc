// Of cuda_runtime_api.h: devices and errors.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/cuda/calls.h"

using namespace lockstep::cuda;  // NOLINT: the stand-in's outer face

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaGetDeviceCount", .device = kNoDevice}, [&] {
    *count = TheMachine().devices;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaDriverGetVersion", .device = kNoDevice}, [&] {
    *version = TheMachine().driver;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaRuntimeGetVersion", .device = kNoDevice}, [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaGetDevice", .device = kNoDevice}, [&] {
    *device = CurrentDevice();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaSetDevice", .device = device}, [&] {
    if (device < 0 || device >= TheMachine().devices) return cudaErrorInvalidDevice;
    CurrentDevice() = device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize(void) {
  Lock lock(TheMachine().mutex);
  const int device = CurrentDevice();
  return Made({.name = "cudaDeviceSynchronize", .device = device}, [&] {
    for (size_t i = 0; i < TheMachine().all_streams.size(); ++i) {
      CUstream_st& stream = *TheMachine().all_streams[i];
      if (stream.device != device) continue;
      if (const auto error = Await(lock, stream, nullptr, 0, "cudaDeviceSynchronize")) return error;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaDeviceGetAttribute", .device = device}, [&] {
    if (device < 0 || device >= TheMachine().devices) return cudaErrorInvalidDevice;
    if (attribute == cudaDevAttrMaxPitch) {
      *value = kMaxPitch;
    } else if (attribute == cudaDevAttrMultiProcessorCount) {
      *value = 4;
    } else if (attribute == cudaDevAttrIntegrated) {
      *value = TheMachine().integrated[device] ? 1 : 0;
    } else if (attribute == cudaDevAttrComputeCapabilityMajor) {
      *value = 9;
    } else if (attribute == cudaDevAttrComputeCapabilityMinor) {
      *value = 0;
    } else {
      return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaGetDeviceProperties", .device = device}, [&] {
    if (device < 0 || device >= TheMachine().devices) return cudaErrorInvalidDevice;
    *properties = {};
    std::strcpy(properties->name, "stand-in");
    for (int i = 0; i < 16; ++i) properties->uuid.bytes[i] = static_cast<char>(16 * device + i);
    properties->totalGlobalMem = size_t{1} << 30;
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->integrated = TheMachine().integrated[device] ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaMemGetInfo", .device = CurrentDevice()}, [&] {
    *free = *total = size_t{1} << 30;
    for (const auto& [base, allocation] : TheMachine().allocations) {
      if (allocation.device == CurrentDevice()) *free -= std::min<size_t>(*free, allocation.bytes);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGetLastError(void) {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError(void) {
  return last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorECCUncorrectable:
      return "cudaErrorECCUncorrectable";
    case cudaErrorOperatingSystem:
      return "cudaErrorOperatingSystem";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "cudaErrorOfTheStandIn";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "as a test said";
}

}  // extern "C"

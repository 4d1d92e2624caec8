// Of cuda_runtime_api.h: memory, and that of other processes.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tests/cuda/calls.h"

using namespace lockstep::cuda;  // NOLINT: the stand-in's outer face

namespace {

CUresult PrimaryContextState(CUdevice device, unsigned* flags, int* active) {
  const Lock lock(TheMachine().mutex);
  if (device < 0 || device >= TheMachine().devices) return CUDA_ERROR_INVALID_VALUE;
  *flags = 0;
  *active = TheMachine().contexts.contains(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

void* DriverEntry(std::string_view symbol) {
  return symbol == "cuDevicePrimaryCtxGetState" ? reinterpret_cast<void*>(&PrimaryContextState) : nullptr;
}

}  // namespace

extern "C" {

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  Lock lock(TheMachine().mutex);
  const Allocation* const allocation = FindAllocation(pointer);
  const int device = allocation == nullptr ? CurrentDevice() : allocation->device;
  return Made({.name = "cudaPointerGetAttributes", .device = device, .to = pointer}, [&] {
    const HostRange* const host = FindHost(pointer);
    *attributes = {};
    attributes->device = allocation != nullptr || host == nullptr ? device : host->device;
    attributes->type = allocation != nullptr ? cudaMemoryTypeDevice
                       : host != nullptr     ? cudaMemoryTypeHost
                                             : cudaMemoryTypeUnregistered;
    if (allocation == nullptr && host == nullptr) attributes->device = cudaInvalidDeviceId;
    if (allocation != nullptr || host != nullptr) attributes->devicePointer = const_cast<void*>(pointer);
    if (allocation == nullptr) attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaMalloc", .device = CurrentDevice(), .bytes = bytes}, [&] {
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    const Allocation* const made = NewAllocation(CurrentDevice(), bytes);
    if (made == nullptr) return cudaErrorMemoryAllocation;
    *pointer = made->base;
    return cudaSuccess;
  });
}

// Waits for the device, as CUDA's does.
cudaError_t cudaFree(void* pointer) {
  Lock lock(TheMachine().mutex);
  const Allocation* const allocation = FindAllocation(pointer);
  const int device = allocation == nullptr ? CurrentDevice() : allocation->device;
  return Made({.name = "cudaFree", .device = device, .to = pointer}, [&] {
    if (pointer == nullptr) return cudaSuccess;
    if (allocation == nullptr || allocation->base != pointer) return cudaErrorInvalidValue;
    CheckUnused(pointer, allocation->bytes, "cudaFree");
    for (size_t i = 0; i < TheMachine().all_streams.size(); ++i) {
      CUstream_st& stream = *TheMachine().all_streams[i];
      if (stream.device != device) continue;
      if (const auto error = Await(lock, stream, nullptr, 0, "cudaFree")) return error;
    }
    FreeAllocation(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaMallocHost", .device = CurrentDevice(), .bytes = bytes}, [&] {
    *pointer = ::operator new (std::max<size_t>(bytes, 1), std::align_val_t{4096});
    TheMachine().host[static_cast<std::byte*>(*pointer)] = {std::max<size_t>(bytes, 1), CurrentDevice(), true};
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* pointer) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaFreeHost", .device = CurrentDevice(), .to = pointer}, [&] {
    if (pointer == nullptr) return cudaSuccess;
    const auto found = TheMachine().host.find(static_cast<std::byte*>(pointer));
    if (found == TheMachine().host.end() || !found->second.allocated) return cudaErrorInvalidValue;
    CheckUnused(pointer, found->second.bytes, "cudaFreeHost");
    TheMachine().host.erase(found);
    ::operator delete (pointer, std::align_val_t{4096});
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaHostRegister", .device = CurrentDevice(), .to = pointer, .bytes = bytes}, [&] {
    auto* const begin = static_cast<std::byte*>(pointer);
    if (begin == nullptr || bytes == 0 || InDevice(pointer)) return cudaErrorInvalidValue;
    for (const auto& [base, range] : TheMachine().host) {
      if (begin < base + range.bytes && base < begin + bytes) return cudaErrorHostMemoryAlreadyRegistered;
    }
    TheMachine().host[begin] = {bytes, CurrentDevice(), false};
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaHostUnregister", .device = CurrentDevice(), .to = pointer}, [&] {
    const auto found = TheMachine().host.find(static_cast<std::byte*>(pointer));
    if (found == TheMachine().host.end() || found->second.allocated) return cudaErrorHostMemoryNotRegistered;
    CheckUnused(pointer, found->second.bytes, "cudaHostUnregister");
    TheMachine().host.erase(found);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** entry, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaGetDriverEntryPointByVersion", .device = kNoDevice}, [&] {
    *entry = DriverEntry(symbol);
    if (found != nullptr) *found = *entry ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}

}  // extern "C"

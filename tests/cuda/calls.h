// How the stand-in answers a call: recorded, then its injected error, then what it does. Only the runtime's files
// include this.
#pragma once

#include "tests/cuda/machine.h"

namespace lockstep::cuda {

inline constexpr uint64_t kMaxPitch = 0x7fff'ffff;
inline constexpr int kNoDevice = -1;  // of calls that have to do with none

inline thread_local cudaError_t last_error = cudaSuccess;

// What a call answers before it does anything: a driver that is missing or too old, a fault of the test's, a device
// that was lost.
inline cudaError_t InjectedError(const Call& call) {
  Machine& machine = TheMachine();
  cudaError_t error = cudaSuccess;
  for (Fault& fault : machine.faults) {
    if (!fault.name.empty() && fault.name != call.name) continue;
    if (fault.always || --fault.nth == 0) error = fault.error;
  }
  std::erase_if(machine.faults, [](const Fault& fault) { return !fault.always && fault.nth == 0; });
  if (error != cudaSuccess || call.name == "cudaDriverGetVersion" || call.name == "cudaRuntimeGetVersion") return error;
  if (machine.driver < kDriverVersion) return cudaErrorInsufficientDriver;
  if (machine.devices == 0) return cudaErrorNoDevice;
  const auto lost = machine.lost.find(call.device);
  return lost == machine.lost.end() ? cudaSuccess : lost->second;
}

// As stand_in.h has it.
inline void MakeContext(const Call& call) {
  if (call.device == kNoDevice || call.name == "cudaDeviceGetAttribute" || call.name == "cudaGetDeviceProperties")
    return;
  const int device = call.name == "cudaSetDevice" ? call.device : CurrentDevice();
  if (device >= 0 && device < TheMachine().devices) TheMachine().contexts.insert(device);
}

// Records the call and answers what it is fated to, or what `body()` does. With the machine's lock.
template <typename Body>
cudaError_t Made(const Call& call, const Body& body) {
  cudaError_t error = InjectedError(call);
  TheMachine().calls.push_back(call);
  const size_t at = TheMachine().calls.size() - 1;
  if (error == cudaSuccess) {
    MakeContext(call);
    error = body();
  }
  if (at < TheMachine().calls.size()) TheMachine().calls[at].result = error;
  if (error != cudaSuccess) last_error = error;
  return error;
}

// As Made(), for calls on a stream; `body` takes the stream.
template <typename Body>
cudaError_t MadeOn(Call call, const Body& body) {
  CUstream_st* const stream = StreamOf(call.stream);
  call.device = stream == nullptr ? CurrentDevice() : stream->device;
  return Made(call, [&] { return stream == nullptr ? cudaErrorInvalidResourceHandle : body(*stream); });
}

inline bool InDevice(const void* pointer) {
  return FindAllocation(pointer) != nullptr;
}

inline bool IsEvent(cudaEvent_t event) {
  return TheMachine().events.contains(event);
}

}  // namespace lockstep::cuda

// Of cuda_runtime_api.h: streams and events.
#include "tests/cuda/calls.h"

using namespace lockstep::cuda;  // NOLINT: the stand-in's outer face

namespace {

// A failed wait: the device will do nothing more of it.
cudaError_t DroppedIf(cudaError_t error, CUstream_st& stream) {
  if (error != cudaSuccess) DropWork(stream);
  return error;
}

}  // namespace

namespace lockstep::cuda {

cudaError_t Launch(cudaStream_t handle, std::string_view name, std::function<void()> work) {
  return LaunchWhen(handle, name, std::move(work), {});
}

cudaError_t LaunchWhen(cudaStream_t handle, std::string_view name, std::function<void()> work, When when) {
  Lock lock(TheMachine().mutex);
  const Call call{.name = std::string(name), .stream = handle, .to = when.memory, .bytes = when.bytes};
  return MadeOn(call, [&](CUstream_st& stream) {
    if (stream.device != CurrentDevice()) return cudaErrorInvalidResourceHandle;
    stream.work.push_back(
        {.run = std::move(work), .ready = std::move(when.ready), .memory = {when.memory}, .bytes = {when.bytes}});
    return cudaSuccess;
  });
}

}  // namespace lockstep::cuda

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaStreamCreateWithFlags", .device = CurrentDevice()}, [&] {
    *stream = TheMachine().all_streams.emplace_back(std::make_unique<CUstream_st>()).get();
    (*stream)->device = CurrentDevice();
    TheMachine().streams.insert(*stream);
    return cudaSuccess;
  });
}

// CUDA lets what is under way finish; here it is a violation, and dropped.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Lock lock(TheMachine().mutex);
  return MadeOn({.name = "cudaStreamDestroy", .stream = handle}, [&](CUstream_st& stream) {
    if (handle == nullptr) return cudaErrorInvalidResourceHandle;
    if (!stream.work.empty()) {
      TheMachine().violations.push_back("cudaStreamDestroy of a stream with work under way");
      stream.work.clear();
    }
    TheMachine().streams.erase(handle);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Lock lock(TheMachine().mutex);
  CUstream_st* const stream = StreamOf(handle);
  const auto error = MadeOn({.name = "cudaStreamSynchronize", .stream = handle}, [&](CUstream_st& found) {
    return Await(lock, found, nullptr, 0, "cudaStreamSynchronize");
  });
  return stream == nullptr ? error : DroppedIf(error, *stream);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Lock lock(TheMachine().mutex);
  return MadeOn({.name = "cudaStreamQuery", .stream = handle}, [&](CUstream_st& stream) {
    if (stream.work.empty()) return cudaSuccess;
    (void)Drive(stream, nullptr, 0, 1);
    return cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int) {
  Lock lock(TheMachine().mutex);
  return MadeOn({.name = "cudaStreamWaitEvent", .stream = handle, .event = event}, [&](CUstream_st& stream) {
    if (!IsEvent(event)) return cudaErrorInvalidResourceHandle;
    if (event->recorded == 0) return cudaSuccess;
    stream.work.push_back({.awaits = event, .in = event->stream, .count = event->recorded});
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  Lock lock(TheMachine().mutex);
  return Made({.name = "cudaEventCreateWithFlags", .device = CurrentDevice()}, [&] {
    *event = TheMachine().all_events.emplace_back(std::make_unique<CUevent_st>()).get();
    (*event)->device = CurrentDevice();
    TheMachine().events.insert(*event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  Lock lock(TheMachine().mutex);
  return MadeOn({.name = "cudaEventRecord", .stream = handle, .event = event}, [&](CUstream_st& stream) {
    if (!IsEvent(event) || event->device != stream.device) return cudaErrorInvalidResourceHandle;
    event->stream = &stream;
    stream.work.push_back({.fires = event, .count = ++event->recorded});
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock(TheMachine().mutex);
  const int device = IsEvent(event) ? event->device : CurrentDevice();
  return Made({.name = "cudaEventQuery", .device = device, .event = event}, [&] {
    if (!IsEvent(event)) return cudaErrorInvalidResourceHandle;
    if (event->fired >= event->recorded) return cudaSuccess;
    (void)Drive(*event->stream, event, event->recorded, 1);
    return cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock(TheMachine().mutex);
  const int device = IsEvent(event) ? event->device : CurrentDevice();
  const auto error = Made({.name = "cudaEventSynchronize", .device = device, .event = event}, [&] {
    if (!IsEvent(event)) return cudaErrorInvalidResourceHandle;
    if (event->fired >= event->recorded) return cudaSuccess;
    return Await(lock, *event->stream, event, event->recorded, "cudaEventSynchronize");
  });
  return !IsEvent(event) || event->stream == nullptr ? error : DroppedIf(error, *event->stream);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Lock lock(TheMachine().mutex);
  const int device = IsEvent(event) ? event->device : CurrentDevice();
  return Made({.name = "cudaEventDestroy", .device = device, .event = event},
              [&] { return TheMachine().events.erase(event) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

}  // extern "C"

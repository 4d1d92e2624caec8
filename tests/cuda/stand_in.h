// The stand-in for the CUDA runtime that tests link: a machine with GPUs. Their memory is memory of this process.
//
// It defines the functions of cuda_runtime_api.h, so that tests of code that calls CUDA need no GPU, driver or toolkit.
// The target //tests/cuda:runtime_stand_in is testonly, and never linked beside the real runtime. The stand-in shows
// what a real device hides:
//
// - A device's memory cannot be read or written by the CPU (the process gets SIGSEGV), except by work of a stream and
//   by Read() and Write() below. An allocation ends at a page that cannot be touched.
// - Work given to a stream runs late: not before a caller waits for it or asks whether it is done, and a question runs
//   one piece of it at most. Code that does not wait sees the old bytes. A test may hold a stream back altogether.
// - As with CUDA, a copy from a device to memory that is not pinned returns when it is done. A copy from such memory to
//   a device takes the bytes at once and writes them late, a plain cudaMemcpy() too.
// - A copy is refused if its host memory is pinned only in part, or in two ranges.
// - Every call is recorded. A test chooses which call fails, and with which error.
// - A violation is what no program should do: free or unregister memory that work under way uses, destroy a stream that
//   has work under way, or wait for a held stream for longer than SetHoldLimit() allows.
//
// Thread-safe. The current device is each thread's own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::cuda {

// The version of a driver that is new enough.
constexpr int kDriverVersion = 13000;

// A machine as new: nothing allocated, recorded, held or failing, no context, device 0 current in every thread. Handles
// and memory from before are gone.
void Reset(int devices = 1);

// The driver's version as cudaDriverGetVersion() has it; 0: no driver is installed. Below kDriverVersion every other
// call answers cudaErrorInsufficientDriver.
void SetDriver(int version);
// Whether `device` shares the CPU's memory (cudaDevAttrIntegrated).
void SetIntegrated(int device, bool integrated);

// One call as it was made. `device` is the stream's or memory's, or else the current one; what a call does not have
// is null or 0.
struct Call {
  std::string name;
  int device = 0;
  cudaStream_t stream = nullptr;
  const void* to = nullptr;  // or the only pointer
  const void* from = nullptr;
  uint64_t bytes = 0;  // of a row, if it has rows
  uint64_t rows = 1;
  uint64_t to_pitch = 0;
  uint64_t from_pitch = 0;
  cudaEvent_t event = nullptr;
  cudaError_t result = cudaSuccess;
};

// In the order in which they were made; only those of `name`, if it is not empty. cudaGetErrorName() and
// cudaGetErrorString() are not recorded.
std::vector<Call> Calls(std::string_view name = {});
void ForgetCalls();

// The `nth` (from 1) call of `name` from now on does nothing and answers `error`; an empty name: of any. A failed wait
// drops what it waited for: the device will not do it any more.
void FailCall(std::string_view name, uint64_t nth, cudaError_t error);
// So does every one.
void FailAlways(std::string_view name, cudaError_t error);
// From now on every call that has to do with `device` answers `error`; what was under way there is dropped.
void LoseDevice(int device, cudaError_t error = cudaErrorECCUncorrectable);

// Work of `stream` does not run until Release(). A caller that waits for it longer than the limit gets
// cudaErrorLaunchTimeout, and that is a violation.
void Hold(cudaStream_t stream);
void Release(cudaStream_t stream);
void SetHoldLimit(uint64_t milliseconds);  // 10'000 after Reset()

// Gives `stream` a piece of work called `name`, recorded like a call, with the stream's device: how a kernel that is
// compiled for the host is launched. It may touch the memory of every device, and calls nothing of
// CUDA. cudaErrorInvalidResourceHandle: the
// stream is not the current device's.
cudaError_t Launch(cudaStream_t stream, std::string_view name, std::function<void()> work);
// The same for work that has to do with others: it does not run before `ready`, asked whenever the stream has
// come to it, says so. It uses `memory`, for violations. Neither calls anything of CUDA.
struct When {
  std::function<bool()> ready;
  const void* memory = nullptr;
  uint64_t bytes = 0;
};
cudaError_t LaunchWhen(cudaStream_t stream, std::string_view name, std::function<void()> work, When when);

// A device's memory as it is now, past all streams. REQUIRES the bytes to be of one allocation.
std::vector<std::byte> Read(const void* device_memory, uint64_t bytes);
void Write(void* device_memory, std::span<const std::byte> bytes);

// What exists now.
struct Live {
  uint64_t streams = 0;
  uint64_t events = 0;
  uint64_t device_allocations = 0;
  uint64_t host_allocations = 0;   // by cudaMallocHost()
  uint64_t registered_ranges = 0;  // by cudaHostRegister()
  uint64_t under_way = 0;          // pieces of work that have not run
};
Live Count();

// The devices that have a context: CUDA makes one on the device that cudaSetDevice() takes, and on the current one in
// every call that has to do with a device, other than asking for the current one and for what a device is.
std::set<int> Contexts();

// One sentence each.
std::vector<std::string> Violations();

}  // namespace lockstep::cuda

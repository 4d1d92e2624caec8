#include "tests/cuda/stand_in.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <thread>

namespace lockstep::cuda {
namespace {

std::vector<std::byte> Bytes(size_t count, uint8_t value) {
  return std::vector<std::byte>(count, std::byte{value});
}

void* Allocate(size_t bytes, uint8_t value) {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, bytes) == cudaSuccess);
  Write(memory, Bytes(bytes, value));
  return memory;
}

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  return stream;
}

cudaEvent_t NewEvent() {
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  return event;
}

// Pinned, and zeros.
std::byte* Pinned(size_t bytes) {
  void* memory = nullptr;
  REQUIRE(cudaMallocHost(&memory, bytes) == cudaSuccess);
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

TEST_CASE("A copy to pinned memory is there after a wait, not before") {
  Reset();
  void* const device = Allocate(100, 7);
  std::byte* const host = Pinned(100);
  const cudaStream_t stream = NewStream();
  REQUIRE(cudaMemcpyAsync(host, device, 100, cudaMemcpyDefault, stream) == cudaSuccess);
  CHECK(host[99] == std::byte{0});
  CHECK(Count().under_way == 1);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(host[99] == std::byte{7});
  CHECK(Count().under_way == 0);
}

TEST_CASE(
    "A copy from memory that is not pinned takes its bytes at once and writes them late, one to it is done when "
    "it returns") {
  Reset();
  void* const device = Allocate(8, 0);
  auto host = Bytes(8, 3);
  REQUIRE(cudaMemcpy(device, host.data(), 8, cudaMemcpyHostToDevice) == cudaSuccess);
  host = Bytes(8, 9);
  CHECK(Read(device, 8) == Bytes(8, 0));
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(Read(device, 8) == Bytes(8, 3));
  const cudaStream_t stream = NewStream();
  REQUIRE(cudaMemcpyAsync(host.data(), device, 8, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  CHECK(host == Bytes(8, 3));
}

TEST_CASE("The CPU cannot read a device's memory, nor what lies behind an allocation") {
  Reset();
  auto* const device = static_cast<volatile char*>(Allocate(256, 42));
  const pid_t child = fork();
  if (child == 0) {
    (void)std::signal(SIGSEGV, SIG_DFL);
    _exit(device[0]);
  }
  int state = 0;
  REQUIRE(waitpid(child, &state, 0) == child);
  CHECK(WIFSIGNALED(state));
  CHECK(WTERMSIG(state) == SIGSEGV);
  CHECK(cudaMemcpyAsync(Pinned(512), const_cast<char*>(device), 257, cudaMemcpyDefault) == cudaErrorInvalidValue);
}

TEST_CASE("An event fires when its stream has come to it, and another stream waits for it") {
  Reset();
  void* const device = Allocate(8, 5);
  std::byte* const host = Pinned(16);
  const cudaStream_t first = NewStream();
  const cudaStream_t second = NewStream();
  const cudaEvent_t event = NewEvent();
  CHECK(cudaEventQuery(event) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(host, device, 8, cudaMemcpyDefault, first) == cudaSuccess);
  REQUIRE(cudaEventRecord(event, first) == cudaSuccess);
  REQUIRE(cudaMemsetAsync(device, 6, 8, first) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(second, event) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(host + 8, device, 8, cudaMemcpyDefault, second) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaErrorNotReady);
  REQUIRE(cudaStreamSynchronize(second) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);
  CHECK(host[0] == std::byte{5});
  CHECK(host[8] == std::byte{5});  // the memset is behind the event
  REQUIRE(cudaStreamSynchronize(first) == cudaSuccess);
  CHECK(Read(device, 8) == Bytes(8, 6));
}

TEST_CASE("A stream that is held does nothing until it is released, and a wait that is too long fails") {
  Reset();
  void* const device = Allocate(8, 5);
  const cudaStream_t stream = NewStream();
  Hold(stream);
  REQUIRE(cudaMemsetAsync(device, 6, 8, stream) == cudaSuccess);
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);  // CUDA takes that for an error
  SECTION("released by another thread") {
    std::thread other([stream] { Release(stream); });
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    other.join();
    CHECK(Read(device, 1) == Bytes(1, 6));
  }
  SECTION("never released") {
    SetHoldLimit(10);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchTimeout);
    CHECK(Violations().size() == 1);
    CHECK(Read(device, 1) == Bytes(1, 5));
  }
}

TEST_CASE("Rows are copied by their pitches, and a pitch of 2 GiB is refused") {
  Reset();
  auto* const device = static_cast<std::byte*>(Allocate(64, 1));
  Write(device + 16, Bytes(16, 2));
  std::byte* const host = Pinned(8);
  REQUIRE(cudaMemcpy2DAsync(host, 4, device, 16, 4, 2, cudaMemcpyDeviceToHost) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(std::vector(host, host + 8) == std::vector<std::byte>{std::byte{1}, std::byte{1}, std::byte{1}, std::byte{1},
                                                              std::byte{2}, std::byte{2}, std::byte{2}, std::byte{2}});
  CHECK(cudaMemcpy2DAsync(host, 4, device, size_t{1} << 31, 4, 1, cudaMemcpyDefault) == cudaErrorInvalidPitchValue);
  CHECK(cudaMemcpy2DAsync(host, 4, device, 3, 4, 1, cudaMemcpyDefault) == cudaErrorInvalidPitchValue);
}

TEST_CASE("A call fails when a test says so, once or always, and does nothing then") {
  Reset();
  void* const device = Allocate(8, 5);
  FailCall("cudaMemsetAsync", 2, cudaErrorLaunchFailure);
  CHECK(cudaMemsetAsync(device, 1, 4) == cudaSuccess);
  CHECK(cudaMemsetAsync(device, 2, 8) == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaMemsetAsync(device, 3, 2) == cudaSuccess);
  CHECK(Calls("cudaMemsetAsync").size() == 3);
  CHECK(Calls("cudaMemsetAsync")[1].result == cudaErrorLaunchFailure);
  CHECK(Count().under_way == 2);
  FailAlways("cudaMalloc", cudaErrorMemoryAllocation);
  void* none = nullptr;
  for (int i = 0; i < 3; ++i) CHECK(cudaMalloc(&none, 1) == cudaErrorMemoryAllocation);
  FailCall("cudaStreamSynchronize", 1, cudaErrorECCUncorrectable);
  CHECK(cudaStreamSynchronize(nullptr) == cudaErrorECCUncorrectable);
  CHECK(Count().under_way == 0);
  CHECK(Read(device, 8) == Bytes(8, 5));
}

TEST_CASE("A lost device answers nothing but its error, another one works on") {
  Reset(2);
  void* const first = Allocate(8, 1);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  void* const second = Allocate(8, 2);
  LoseDevice(0);
  std::byte* const host = Pinned(8);
  const cudaStream_t stream = NewStream();
  CHECK(cudaMemcpyAsync(host, second, 8, cudaMemcpyDefault, stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  cudaPointerAttributes attributes{};
  CHECK(cudaPointerGetAttributes(&attributes, first) == cudaErrorECCUncorrectable);
  CHECK(cudaSetDevice(0) == cudaErrorECCUncorrectable);
}

TEST_CASE("Without a driver, with an old one and without a device it answers as CUDA does") {
  Reset(0);
  int count = -1;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  Reset();
  int version = -1;
  for (const int driver : {0, 12020}) {
    SetDriver(driver);
    CHECK(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
    CHECK(cudaDriverGetVersion(&version) == cudaSuccess);
    CHECK(version == driver);
  }
}

TEST_CASE("It knows where memory lies, and each thread has a current device") {
  Reset(2);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  void* const device = Allocate(8, 1);
  std::thread([] {
    int current = -1;
    CHECK(cudaGetDevice(&current) == cudaSuccess);
    CHECK(current == 0);
  }).join();
  auto host = Bytes(16, 1);
  cudaPointerAttributes attributes{};
  REQUIRE(cudaPointerGetAttributes(&attributes, static_cast<std::byte*>(device) + 7) == cudaSuccess);
  CHECK((attributes.type == cudaMemoryTypeDevice && attributes.device == 1));
  REQUIRE(cudaPointerGetAttributes(&attributes, host.data()) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  REQUIRE(cudaHostRegister(host.data(), 16, cudaHostRegisterPortable) == cudaSuccess);
  CHECK(cudaHostRegister(host.data() + 8, 16, cudaHostRegisterPortable) == cudaErrorHostMemoryAlreadyRegistered);
  REQUIRE(cudaPointerGetAttributes(&attributes, host.data() + 15) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK(cudaHostUnregister(host.data() + 8) == cudaErrorHostMemoryNotRegistered);
  CHECK(cudaHostUnregister(host.data()) == cudaSuccess);
}

TEST_CASE("A call that has to do with a device makes a context on the current one, whatever memory it asks about") {
  Reset(3);
  int value = 0;
  int device = 0;
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  CHECK(cudaGetDeviceCount(&value) == cudaSuccess);
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrIntegrated, 2) == cudaSuccess);
  CHECK(Contexts().empty());
  CHECK(cudaSetDevice(1) == cudaSuccess);
  void* const memory = Allocate(8, 1);
  CHECK(Contexts() == std::set<int>{1});
  std::thread([memory] {
    cudaPointerAttributes attributes{};
    CHECK(cudaPointerGetAttributes(&attributes, memory) == cudaSuccess);
  }).join();
  CHECK(Contexts() == std::set<int>{0, 1});
}

TEST_CASE("A copy's memory on the host is pinned as a whole by one call, or not at all") {
  Reset();
  void* const device = Allocate(64, 1);
  auto host = Bytes(64, 0);
  REQUIRE(cudaHostRegister(host.data() + 16, 16, cudaHostRegisterDefault) == cudaSuccess);
  REQUIRE(cudaHostRegister(host.data() + 32, 16, cudaHostRegisterDefault) == cudaSuccess);
  CHECK(cudaMemcpy(host.data(), device, 16, cudaMemcpyDefault) == cudaSuccess);
  CHECK(cudaMemcpy(host.data(), device, 17, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host.data() + 16, device, 16, cudaMemcpyDefault) == cudaSuccess);
  CHECK(cudaMemcpy(host.data() + 16, device, 17, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(device, host.data() + 40, 9, cudaMemcpyDefault) == cudaErrorInvalidValue);
}

TEST_CASE("Memory that work under way uses is not to be given up") {
  Reset();
  void* const device = Allocate(8, 1);
  auto host = Bytes(8, 0);
  const cudaStream_t stream = NewStream();
  REQUIRE(cudaHostRegister(host.data(), 8, cudaHostRegisterDefault) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(host.data(), device, 8, cudaMemcpyDefault, stream) == cudaSuccess);
  REQUIRE(cudaHostUnregister(host.data()) == cudaSuccess);
  CHECK(Violations().size() == 1);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(Violations().size() == 2);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaFree(device) == cudaSuccess);
  CHECK(Violations().size() == 2);
}

TEST_CASE("A kernel for the host runs in its stream, with the memory of devices") {
  Reset(2);
  auto* const device = static_cast<std::byte*>(Allocate(8, 1));
  const cudaStream_t stream = NewStream();
  REQUIRE(Launch(stream, "add", [device] { device[3] = std::byte{9}; }) == cudaSuccess);
  CHECK(Read(device, 8) == Bytes(8, 1));
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(Read(device + 3, 1) == Bytes(1, 9));
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(Launch(stream, "add", [] {}) == cudaErrorInvalidResourceHandle);
  CHECK(Calls("add").size() == 2);
}

}  // namespace
}  // namespace lockstep::cuda

// What the copy engine of builds with CUDA asks CUDA for: which device, which stream, in which order.
#include <algorithm>
#include <set>
#include <thread>

#include "export_plugin/exporter/cuda_testing.h"
#include "export_plugin/exporter/device_streams.h"

namespace lockstep::exporter {
namespace {

int Current() {
  int device = -1;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  return device;
}

// Host memory that is pinned as long as `engine` and this live.
struct Target {
  Memory bytes;
  PinnedMemory pinned;

  Target(CopyEngine& engine, size_t size) : bytes(size) {
    const std::span<std::byte> all(bytes);
    auto made = engine.Pin({&all, 1});
    REQUIRE(made.ok());
    pinned = *std::move(made);
  }
};

TEST_CASE("The device is the tensor's, whatever the thread's is, and that stays as it was") {
  cuda::Reset(3);
  const Memory first = Noise(1000, 1);
  const Memory second = Noise(1000, 2);
  const std::byte* const on_1 = OnGpu(1, first);
  const std::byte* const on_2 = OnGpu(2, second);
  const auto engine = NewEngine();
  Memory target(2000);
  const PlacedCopy copies[] = {{on_2, target.data() + 1000, {.row_bytes = 1000}},
                               {on_1, target.data(), {.row_bytes = 1000}}};
  cuda::ForgetCalls();
  std::thread([&] {
    REQUIRE(engine->Run(copies).ok());
    CHECK(Current() == 0);
  }).join();
  REQUIRE(cudaSetDevice(2) == cudaSuccess);
  REQUIRE(engine->Run(copies).ok());
  CHECK(Current() == 2);
  CHECK(std::equal(first.begin(), first.end(), target.begin()));
  CHECK(std::equal(second.begin(), second.end(), target.begin() + 1000));
  for (const cuda::Call& call : cuda::Calls("cudaMemcpyAsync")) CHECK(call.device == (call.from == on_1 ? 1 : 2));
  CHECK(cuda::Calls("cudaStreamCreateWithFlags").size() == 4);  // two for each device that has a tensor
  CHECK(cuda::Violations().empty());
}

TEST_CASE("A thread that chose no device makes no context but on the tensors' GPU, and keeps that one") {
  cuda::Reset(3);
  const Memory content = Noise(1000, 1);
  void* tensor = nullptr;
  std::thread([&] {
    REQUIRE(cudaSetDevice(2) == cudaSuccess);
    REQUIRE(cudaMalloc(&tensor, content.size()) == cudaSuccess);
  }).join();
  cuda::Write(tensor, content);
  std::thread([&] {
    const auto engine = NewEngine();
    CHECK(engine->OnDevice(tensor));
    CHECK(engine->PrepareGpuOf(tensor).ok());
    Target target(*engine, 1000);
    const PlacedCopy copy{static_cast<std::byte*>(tensor), target.bytes.data(), {.row_bytes = 1000}};
    REQUIRE(engine->Run({&copy, 1}).ok());
    CHECK(target.bytes == content);
    CHECK(Current() == 2);
  }).join();
  CHECK(cuda::Contexts() == std::set<int>{2});
}

TEST_CASE("CUDA is not called before a tensor is on a GPU") {
  cuda::Reset(2);
  const auto engine = NewEngine();
  const Memory source = Noise(100, 1);
  Memory target(100);
  const PlacedCopy copy{source.data(), target.data(), {.row_bytes = 100}};
  REQUIRE(engine->Run({&copy, 1}).ok());
  CHECK(target == source);
  CHECK_FALSE(engine->OnDevice(source.data()));
  CHECK_FALSE(engine->OnDevice(nullptr));
  CHECK_FALSE(engine->OnUnifiedMemory(source.data()));
  CHECK(engine->PrepareGpuOf(source.data()).ok());
  engine->Stop();
  CHECK(cuda::Calls().empty());
  CHECK(engine->OnDevice(OnGpu(1, source)));
}

TEST_CASE("Two batches are under way, each in place once it was waited for") {
  cuda::Reset();
  const Memory content = Noise(3000, 1);
  const std::byte* const source = OnGpu(0, content);
  const auto engine = NewEngine();
  Target target(*engine, 3000);
  REQUIRE(engine->most_under_way() == 2);
  const auto start = [&](uint64_t at) {
    const PlacedCopy copy{source, target.bytes.data(), {at, at, 1, 1000, 0, 0}};
    REQUIRE(engine->Start({&copy, 1}).ok());
  };
  const auto there = [&](uint64_t at) {
    return std::equal(content.begin() + at, content.begin() + at + 1000, target.bytes.begin() + at);
  };
  start(0);
  start(1000);
  CHECK_FALSE(there(0));
  REQUIRE(engine->Wait().ok());
  CHECK(there(0));
  CHECK_FALSE(there(1000));
  start(2000);
  REQUIRE(engine->Wait().ok());
  CHECK(there(1000));
  CHECK_FALSE(there(2000));
  REQUIRE(engine->Wait().ok());
  CHECK(there(2000));
  start(0);
  engine->Stop();
  CHECK(cuda::Count().under_way == 0);
  start(1000);
  REQUIRE(engine->Wait().ok());
  CHECK(cuda::Violations().empty());
}

TEST_CASE("Elements are rounded on the device: what crosses the bus is rounded, in as few copies as rows allow") {
  cuda::Reset();
  const uint64_t elements = DeviceStreams::kPartBytes / 2 + 1001;
  const Memory content = Noise(4 * elements, 1);
  const std::byte* const source = OnGpu(0, content);
  const auto engine = NewEngine();
  Target target(*engine, 2 * elements);
  Memory expected(2 * elements);
  const layout::StridedCopy copy{.row_bytes = 2 * elements};
  const PlacedCopy on_host{content.data(), expected.data(), copy, ElementConversion::kF32ToBF16};
  REQUIRE(NewHostCopyEngine(nullptr)->Run({&on_host, 1}).ok());
  cuda::ForgetCalls();
  const PlacedCopy placed{source, target.bytes.data(), copy, ElementConversion::kF32ToBF16};
  REQUIRE(engine->Run({&placed, 1}).ok());
  CHECK(target.bytes == expected);
  const std::vector<cuda::Call> rounded = cuda::Calls("RoundRows");
  REQUIRE(rounded.size() == 2);
  CHECK(rounded[0].stream != rounded[1].stream);  // one while the other crosses the bus
  CHECK(cuda::Calls("cudaStreamSynchronize").empty());
  CHECK(cuda::Calls("cudaEventSynchronize").size() == 1);
  uint64_t crossed = 0;
  for (const cuda::Call& call : cuda::Calls("cudaMemcpyAsync")) crossed += call.bytes;
  CHECK(crossed == 2 * elements);
  CHECK(cuda::Count().device_allocations == 2);  // the tensor and the slab
}

TEST_CASE("Narrow rows that lie apart on the device cross the bus as one, in both ways") {
  cuda::Reset();
  const Memory content = Noise(100'000, 1);
  const auto engine = NewEngine();
  const layout::StridedCopy out{6, 0, 1000, 10, 100, 10};
  std::byte* const tensor = OnGpu(0, content);
  Target target(*engine, 10'000);
  Memory expected(10'000);
  const PlacedCopy on_host{content.data(), expected.data(), out};
  REQUIRE(NewHostCopyEngine(nullptr)->Run({&on_host, 1}).ok());
  cuda::ForgetCalls();
  const PlacedCopy packed{tensor, target.bytes.data(), out};
  REQUIRE(engine->Run({&packed, 1}).ok());
  CHECK(target.bytes == expected);
  const layout::StridedCopy in{0, 3, 1000, 10, 10, 100};
  Memory expected_back = content;
  const PlacedCopy back_on_host{target.bytes.data(), expected_back.data(), in};
  REQUIRE(NewHostCopyEngine(nullptr)->Run({&back_on_host, 1}).ok());
  const PlacedCopy unpacked{target.bytes.data(), tensor, in};
  REQUIRE(engine->Run({&unpacked, 1}).ok());
  CHECK((cuda::Read(tensor, content.size()) == expected_back));
  CHECK(cuda::Calls("MoveRows").size() == 2);
  CHECK(cuda::Calls("cudaMemcpy2DAsync").empty());
  const std::vector<cuda::Call> copies = cuda::Calls("cudaMemcpyAsync");
  REQUIRE(copies.size() == 2);
  for (const cuda::Call& copy : copies) CHECK(copy.bytes == 10'000);
}

TEST_CASE("Rows that lie further apart than CUDA can say are copied one by one") {
  cuda::Reset();
  constexpr uint64_t kPitch = (uint64_t{1} << 31) + 64;
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, kPitch + 100) == cudaSuccess);
  auto* const source = static_cast<std::byte*>(memory);
  const Memory content = Noise(200, 1);
  cuda::Write(source, std::span(content).first(100));
  cuda::Write(source + kPitch, std::span(content).last(100));
  const auto engine = NewEngine();
  Target target(*engine, 200);
  const PlacedCopy copy{source, target.bytes.data(), {0, 0, 2, 100, kPitch, 100}};
  REQUIRE(engine->Run({&copy, 1}).ok());
  CHECK(target.bytes == content);
}

TEST_CASE("Copies are cut where pinned ranges meet, plain ones, rows and rounded ones") {
  cuda::Reset();
  const Memory content = Noise(40'000, 1);
  std::byte* const source = OnGpu(0, content);
  const auto engine = NewEngine();
  const auto host = NewHostCopyEngine(nullptr);
  const struct {
    layout::StridedCopy copy;
    ElementConversion conversion;
  } cases[] = {{{.row_bytes = 10'000}, ElementConversion::kNone},
               {{1, 0, 100, 100, 120, 100}, ElementConversion::kNone},
               {{0, 6, 30, 300, 1000, 320}, ElementConversion::kF32ToBF16}};
  for (const auto& one : cases) {
    Memory expected(10'000);
    const PlacedCopy wanted{content.data(), expected.data(), one.copy, one.conversion};
    REQUIRE(host->Run({&wanted, 1}).ok());
    Memory bytes(10'000);
    const std::span<std::byte> all(bytes);
    const std::span<std::byte> pieces[] = {all.subspan(1000, 2050), all.subspan(3050, 3001), all.subspan(7000, 100)};
    const auto pinned = engine->Pin(pieces);
    REQUIRE(pinned.ok());
    const PlacedCopy placed{source, bytes.data(), one.copy, one.conversion};
    const Status status = engine->Run({&placed, 1});
    INFO(status.ToString());
    REQUIRE(status.ok());
    CHECK(bytes == expected);
  }
  CHECK(cuda::Count().registered_ranges == 0);
}

TEST_CASE("A failed pin is told in CUDA's words, and leaves nothing pinned") {
  cuda::Reset();
  const auto engine = NewEngine();
  Memory bytes(9000);
  const std::span<std::byte> all(bytes);
  const std::span<std::byte> pieces[] = {all.subspan(0, 3000), all.subspan(3000, 3000), all.subspan(6000, 3000)};
  cuda::FailCall("cudaHostRegister", 3, cudaErrorMemoryAllocation);
  const auto pinned = engine->Pin(pieces);
  REQUIRE_FALSE(pinned.ok());
  CHECK(pinned.status().code() == ErrorCode::kResourceExhausted);
  CheckContains(pinned.status(), "pinning 3000 bytes after 2 pieces: cudaErrorMemoryAllocation: ");
  CHECK(cuda::Count().registered_ranges == 0);
  CHECK(engine->Pin(pieces).ok());
}

TEST_CASE("Whether memory is unified is asked of the tensor's device") {
  cuda::Reset(2);
  cuda::SetIntegrated(1, true);
  const auto engine = NewEngine();
  const Memory host(10);
  CHECK_FALSE(engine->OnUnifiedMemory(OnGpu(0, host)));
  CHECK(engine->OnUnifiedMemory(OnGpu(1, host)));
  CHECK_FALSE(engine->OnUnifiedMemory(host.data()));
}

TEST_CASE("Without a GPU that works host memory is copied, and a GPU's is an error that says what to do") {
  const struct {
    int devices;
    int driver;
    cudaError_t error;
    ErrorCode code;
    std::string_view says;
  } cases[] = {
      {0, cuda::kDriverVersion, cudaSuccess, ErrorCode::kNotFound, "CUDA finds no GPU: see"},
      {1, 0, cudaSuccess, ErrorCode::kNotFound, "CUDA finds no driver: install"},
      {1, 11'080, cudaSuccess, ErrorCode::kUnavailable, "the driver is for CUDA 11.8, older than "},
      {1, cuda::kDriverVersion, cudaErrorOperatingSystem, ErrorCode::kUnavailable, "cudaErrorOperatingSystem"},
  };
  for (const auto& one : cases) {
    cuda::Reset();
    const Memory content = Noise(100, 1);
    const std::byte* const on_gpu = OnGpu(0, content);
    Memory target(100);
    if (one.devices == 0) cuda::FailAlways("cudaGetDeviceCount", cudaErrorNoDevice);
    if (one.error != cudaSuccess) cuda::FailAlways("cudaGetDeviceCount", one.error);
    cuda::SetDriver(one.driver);
    CHECK(GpuTrouble().code() == one.code);
    CheckContains(GpuTrouble(), one.says);
    const auto engine = NewEngine();
    const PlacedCopy fine{content.data(), target.data(), {.row_bytes = 100}};
    CHECK(engine->Run({&fine, 1}).ok());
    CHECK(target == content);
    const PlacedCopy bad{on_gpu, target.data(), {.row_bytes = 100}};
    const Status status = engine->Run({&bad, 1});
    CHECK(status.code() == one.code);
    CheckContains(status, one.says);
    CHECK(target == content);
  }
}

}  // namespace
}  // namespace lockstep::exporter

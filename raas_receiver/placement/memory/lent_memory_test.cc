// GPU memory that is lent, over the stand-in for the CUDA runtime: what the owner lends is this process' own.
#include <fcntl.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status_testing.h"
#include "raas_receiver/placement/memory/target_memory.h"
#include "tests/cuda/stand_in.h"

namespace lockstep::placement {
namespace {

constexpr uint64_t kAllocated = uint64_t{24} << 20;  // of which staging memory holds a third
constexpr uint64_t kOffset = 512;                    // of the memory in its allocation
constexpr uint64_t kBytes = kAllocated - 1024;
constexpr char kUuid[] = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";  // the stand-in's device 0

Bytes Noise(size_t bytes, uint32_t seed) {
  std::mt19937 generator(seed);
  Bytes noise(bytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(generator());
  return noise;
}

// An engine's allocation on device 0, and the same bytes on the host, written by the host's kernels.
struct Scene {
  Scene() {
    cuda::Reset();
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, kAllocated) == cudaSuccess);
    allocation = memory;
    const Bytes noise = Noise(kAllocated, 1);
    cuda::Write(memory, noise);
    segment = *os::CreateMemfdSegment("oracle", kAllocated);
    std::memcpy(segment.data(), noise.data(), kAllocated);
    cudaIpcMemHandle_t handle;
    REQUIRE(cudaIpcGetMemHandle(&handle, memory) == cudaSuccess);
    description = {.kind = MemoryKind::kCuda, .bytes = kBytes, .device = kUuid, .offset = kOffset};
    std::memcpy(description.handle.data(), &handle, description.handle.size());
  }

  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;
  ~Scene() { cuda::Reset(); }  // what the receiver keeps of a GPU until it ends is no leak

  std::unique_ptr<TargetMemory> Open() {
    auto opened = OpenCudaMemory(description);
    INFO(opened.status().ToString());
    REQUIRE(opened.ok());
    return *std::move(opened);
  }

  // The same call for both; what was lent is then what the host's kernels made.
  template <typename Call>
  void CheckBoth(TargetMemory& memory, const Call& call) {
    auto copy = *os::AdoptSegment(os::UniqueFd(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0)), kAllocated,
                                  os::Access::kReadWrite, "oracle");
    Bytes before(segment.data(), segment.data() + kAllocated);
    const auto oracle = NewHostMemory(std::move(copy));
    // The oracle's memory begins kOffset earlier.
    std::memmove(segment.data(), before.data() + kOffset, kBytes);
    REQUIRE(call(*oracle).ok());
    std::memcpy(before.data() + kOffset, segment.data(), kBytes);
    std::memcpy(segment.data(), before.data(), kAllocated);
    REQUIRE(call(memory).ok());
    REQUIRE(memory.Finish().ok());
    CHECK((cuda::Read(allocation, kAllocated) == before));
    CHECK(cuda::Violations().empty());
  }

  const void* allocation = nullptr;
  os::MappedSegment segment;
  MemoryDescription description;
};

struct Units {
  std::vector<uint32_t> offsets;
  Bytes values;
};

// Rising places of any alignment in `room` bytes.
Units SomeUnits(uint32_t unit, uint64_t room, uint32_t most_apart, uint32_t seed) {
  std::mt19937 random(seed);
  Units units;
  for (uint64_t at = random() % most_apart; at + unit <= room; at += unit + random() % most_apart) {
    units.offsets.push_back(static_cast<uint32_t>(at));
  }
  units.values = Noise(units.offsets.size() * unit, seed + 1);
  return units;
}

TEST_CASE("Units of every width, in runs large and small, are where the host's kernels put them") {
  Scene scene;
  const auto memory = scene.Open();
  CHECK(memory->bytes() == kBytes);
  std::vector<Units> units;
  std::vector<ScatterRun> runs;
  uint64_t base = 24;
  for (const uint32_t unit : {8u, 4u, 2u, 1u}) {
    for (const uint64_t room : {4'000'000u, 1000u, 0u, 50u}) {
      units.push_back(SomeUnits(unit, room, 9, unit));
      runs.push_back({base, unit, {}, nullptr});
      base += room + 7;
    }
  }
  REQUIRE(base < kBytes);
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].offsets = units[i].offsets;
    runs[i].values = units[i].values.data();
  }
  scene.CheckBoth(*memory, [&](TargetMemory& both) { return both.Scatter(runs); });
}

TEST_CASE("Rows narrow and wide, and zeros, are written, compared and told apart as on the host") {
  Scene scene;
  const auto memory = scene.Open();
  const Bytes source = Noise(kBytes, 7);
  const std::vector<layout::StridedCopy> copies{{.source_offset = 3, .target_offset = 5, .row_bytes = 10'000'001},
                                                {1, 11'000'000, 700, 510, 1022, 512},
                                                {0, 12'000'000, 3000, 2, 64, 128},
                                                {9, 13'000'001, 40, 100'000, 100'001, 100'004}};
  CHECK_FALSE(*memory->Equal(copies, source.data()));
  scene.CheckBoth(*memory, [&](TargetMemory& both) { return both.Copy(copies, source.data()); });
  CHECK(*memory->Equal(copies, source.data()));
  const std::vector<StridedRange> zeros{{.offset = 7, .row_bytes = 2'000'001}, {10'000'000, 2, 5000, 4}};
  CHECK_FALSE(*memory->IsZero(zeros));
  scene.CheckBoth(*memory, [&](TargetMemory& both) { return both.Zero(zeros); });
  CHECK(*memory->IsZero(zeros));
  CHECK_FALSE(*memory->Equal(copies, source.data()));
}

TEST_CASE("In a pause nothing is loaded and nothing waits but the end; many runs take one copy and one launch") {
  Scene scene;
  const auto memory = scene.Open();
  CHECK(cuda::Calls("ScatterUnits").size() == 4);
  CHECK(cuda::Calls("MoveUnits").size() == 4);
  cuda::ForgetCalls();
  constexpr size_t kRuns = 1000;
  const std::vector<uint32_t> offsets{0, 2, 8};
  const Bytes values = Noise(6, 3);
  std::vector<ScatterRun> runs;
  for (size_t i = 0; i < kRuns; ++i) runs.push_back({i * 20'000, 2, offsets, values.data()});
  for (int pass = 1; pass <= 5; ++pass) {
    REQUIRE(memory->Scatter(runs).ok());
    CHECK(cuda::Calls("ScatterUnits").size() == static_cast<size_t>(pass));
    CHECK(cuda::Calls("cudaMemcpyAsync").size() == static_cast<size_t>(pass));
  }
  CHECK(cuda::Calls("cudaStreamSynchronize").empty());
  REQUIRE(memory->Finish().ok());
  CHECK(cuda::Calls("cudaMemcpy2DAsync").empty());
  const layout::StridedCopy narrow{0, 0, 100'000, 2, 2, 4};
  REQUIRE(memory->Copy({&narrow, 1}, Noise(200'000, 1).data()).ok());
  REQUIRE(memory->Finish().ok());
  CHECK(cuda::Calls("cudaMemcpy2DAsync").empty());
}

TEST_CASE("What cannot be opened is refused with the reason, and what to do") {
  Scene scene;
  MemoryDescription bad = scene.description;
  bad.device = "GPU-ffffffff-0000-0000-0000-000000000000";
  CHECK_THAT(OpenCudaMemory(bad), FailsWith(ErrorCode::kUnavailable, bad.device, kUuid + 4, "MIG"));
  bad = scene.description;
  bad.bytes = uint64_t{1} << 40;
  CHECK(OpenCudaMemory(bad).status().code() == ErrorCode::kBadData);
  bad.bytes = 1;
  bad.offset = UINT64_MAX;
  CHECK(OpenCudaMemory(bad).status().code() == ErrorCode::kBadData);
  bad = scene.description;
  bad.handle.fill(0);
  CHECK(OpenCudaMemory(bad).status().code() == ErrorCode::kBadData);
  CHECK(cuda::Count().opened_handles == 0);
  cuda::SetDriver(12'020);
  CHECK_THAT(OpenCudaMemory(scene.description), FailsWith(ErrorCode::kUnavailable, "CUDA 12.2"));
  CHECK(LostGpu().ok());
}

TEST_CASE("Whichever call fails, the write says so, and nothing is under way") {
  for (uint64_t nth = 1;; ++nth) {
    Scene scene;
    const auto memory = scene.Open();
    cuda::ForgetCalls();
    cuda::FailCall("", nth, cudaErrorInvalidValue);
    const Units units = SomeUnits(2, kBytes, 900, 4);
    const ScatterRun run{0, 2, units.offsets, units.values.data()};
    const layout::StridedCopy rows{0, 0, 1000, 2, 64, 128};
    const Bytes source = Noise(1 << 20, 2);
    Status status = memory->Scatter({&run, 1});
    if (status.ok()) status = memory->Copy({&rows, 1}, source.data());
    const Status finished = memory->Finish();
    if (status.ok()) status = finished;
    const std::vector<cuda::Call> calls = cuda::Calls();
    if (std::none_of(calls.begin(), calls.end(), [](const cuda::Call& call) { return call.result != cudaSuccess; })) {
      CHECK(status.ok());
      CHECK(nth > 6);
      break;
    }
    INFO("call " << nth << ": " << status.ToString());
    CHECK_THAT(status, FailsWith(ErrorCode::kIo, "cudaErrorInvalidValue"));
    cuda::FailCall("", ~uint64_t{0}, cudaSuccess);
    CHECK(memory->Finish().ok());
    CHECK(cuda::Count().under_way == 0);
    CHECK(cuda::Violations().empty());
  }
}

TEST_CASE("A GPU that is gone is told from a call that failed") {
  Scene scene;
  const auto memory = scene.Open();
  CHECK(LostGpu().ok());
  const Units units = SomeUnits(2, 1000, 9, 4);
  const ScatterRun run{0, 2, units.offsets, units.values.data()};
  REQUIRE(memory->Scatter({&run, 1}).ok());
  cuda::LoseDevice(0);
  CHECK_FALSE(memory->Finish().ok());
  CHECK_THAT(LostGpu(), FailsWith(ErrorCode::kIo, "cudaErrorECCUncorrectable"));
}

}  // namespace
}  // namespace lockstep::placement

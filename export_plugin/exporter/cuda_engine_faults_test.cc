// The copy engine of builds with CUDA when CUDA fails.
#include "export_plugin/exporter/cuda_testing.h"

namespace lockstep::exporter {
namespace {

constexpr size_t kBytes = 6000;

// Copies of every kind between the host and two GPUs, in two batches.
struct Scene {
  Memory content = Noise(kBytes, 1);
  Memory bytes = Memory(4 * kBytes);
  std::byte* on_0 = OnGpu(0, content);
  std::byte* on_1 = OnGpu(1, content);
  std::byte* back = OnGpu(1, Memory(kBytes));
  std::unique_ptr<CopyEngine> engine = NewEngine();

  std::vector<PlacedCopy> first() {
    return {{on_0, bytes.data(), {.row_bytes = kBytes}},
            {content.data(), bytes.data() + kBytes, {.row_bytes = kBytes}},
            {on_1, bytes.data() + 2 * kBytes, {.row_bytes = kBytes / 2}, ElementConversion::kF32ToBF16}};
  }
  std::vector<PlacedCopy> second() {
    return {{on_0, bytes.data() + 3 * kBytes, {0, 0, 10, 100, 200, 150}},
            {content.data(), back, {.row_bytes = kBytes / 2}},
            {on_0, back, {0, kBytes / 2, 3, 4, 8, 4}}};
  }

  // Both batches under way at once, pinned; the first error.
  Status Publish() {
    const std::span<std::byte> all(bytes);
    LS_ASSIGN_OR_RETURN(const PinnedMemory pinned, engine->Pin({&all, 1}));
    LS_RETURN_IF_ERROR(engine->Start(first()));
    const Status started = engine->Start(second());
    if (started.ok()) LS_RETURN_IF_ERROR(engine->Wait());
    return started.ok() ? engine->Wait() : started;
  }

  void CheckBytes() {
    Memory expected(bytes.size());
    Memory expected_back(kBytes);
    const auto host = NewHostCopyEngine(nullptr);
    for (std::vector<PlacedCopy> batch : {first(), second()}) {
      for (PlacedCopy& copy : batch) {
        if (copy.source == on_0 || copy.source == on_1) copy.source = content.data();
        copy.target = copy.target == back ? expected_back.data() : expected.data() + (copy.target - bytes.data());
      }
      REQUIRE(host->Run(batch).ok());
    }
    CHECK((bytes == expected));
    CHECK((cuda::Read(back, kBytes) == expected_back));
  }
};

TEST_CASE("Whichever call fails, the error says so, nothing is under way, and the next publish is whole") {
  size_t faults = 0;
  for (uint64_t nth = 1;; ++nth) {
    cuda::Reset(2);
    Scene scene;
    cuda::ForgetCalls();
    cuda::FailCall("", nth, cudaErrorIllegalAddress);
    const Status status = scene.Publish();
    const std::vector<cuda::Call> calls = cuda::Calls();
    const bool failed = std::any_of(calls.begin(), calls.end(),
                                    [](const cuda::Call& call) { return call.result == cudaErrorIllegalAddress; });
    if (!failed) {
      REQUIRE(status.ok());
      break;
    }
    const std::string name = calls[nth - 1].name;
    INFO("call " << nth << ", " << name << ": " << status.ToString());
    ++faults;
    CHECK(cuda::Count().under_way == 0);
    CHECK(cuda::Violations().empty());
    // A call that undoes something has no caller to report an error to.
    if (status.ok()) {
      CHECK((name == "cudaSetDevice" || name == "cudaHostUnregister" || name == "cudaGetDriverEntryPointByVersion"));
    } else {
      CheckContains(status, "CUDA: ");
      CheckContains(status, "cudaErrorIllegalAddress");
      CHECK(status.code() == (name == "cudaGetDeviceCount" ? ErrorCode::kUnavailable : ErrorCode::kIo));
    }
    if (name == "cudaHostUnregister") continue;  // the memory cannot be pinned again
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    const Status again = scene.Publish();
    INFO("again: " << again.ToString());
    REQUIRE(again.ok());
    scene.CheckBytes();
  }
  CHECK(faults > 40);
}

TEST_CASE("A lost device fails what is on it, at every call, and nothing stays under way") {
  for (const bool before : {true, false}) {
    cuda::Reset(2);
    Scene scene;
    if (before) cuda::LoseDevice(1);
    Status status = scene.engine->Start(scene.first());
    if (!before) {
      REQUIRE(status.ok());
      cuda::LoseDevice(1);
      status = scene.engine->Wait();
    }
    CHECK(status.code() == ErrorCode::kIo);
    CheckContains(status, "cudaErrorECCUncorrectable");
    CHECK(cuda::Count().under_way == 0);
    CHECK_FALSE(scene.Publish().ok());
    const PlacedCopy fine{scene.on_0, scene.bytes.data(), {.row_bytes = kBytes}};
    CHECK(scene.engine->Run({&fine, 1}).ok());
  }
}

TEST_CASE("Without memory for the slab the error is that memory is missing, on which device") {
  cuda::Reset(2);
  Scene scene;
  cuda::FailCall("cudaMalloc", 1, cudaErrorMemoryAllocation);
  const Status status = scene.engine->Run(scene.first());
  CHECK(status.code() == ErrorCode::kResourceExhausted);
  CheckContains(status, "bytes to convert in (device 1)");
  CHECK(scene.engine->Run(scene.first()).ok());
}

TEST_CASE("An engine that goes leaves nothing on the devices, and waits for what is under way") {
  cuda::Reset(2);
  {
    Scene scene;
    REQUIRE(scene.engine->Start(scene.first()).ok());
    REQUIRE(scene.engine->Start(scene.second()).ok());
    scene.engine.reset();
    CHECK(cuda::Count().under_way == 0);
  }
  const cuda::Live live = cuda::Count();
  CHECK(live.streams == 0);
  CHECK(live.events == 0);
  CHECK(live.device_allocations == 3);  // the scene's
  CHECK(live.registered_ranges == 0);
  CHECK(cuda::Violations().empty());
}

}  // namespace
}  // namespace lockstep::exporter

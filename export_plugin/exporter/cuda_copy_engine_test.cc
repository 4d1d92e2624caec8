// On a GPU: bazel test --config=gpu //export_plugin/exporter:cuda_copy_engine_test; in any build on the CUDA runtime's
// stand-in: cuda_copy_engine_on_stand_in_test.
#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "export_plugin/exporter/copy_engine.h"

namespace lockstep::exporter {
namespace {

using Memory = std::vector<std::byte>;

Memory Noise(size_t bytes, uint32_t seed) {
  std::mt19937 generator(seed);
  Memory noise(bytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(generator());
  return noise;
}

// Memory of the GPU with the bytes of `content`.
class DeviceMemory {
 public:
  explicit DeviceMemory(const Memory& content) : bytes_(content.size()) {
    REQUIRE(cudaMalloc(&data_, bytes_) == cudaSuccess);
    REQUIRE(cudaMemcpy(data_, content.data(), bytes_, cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // memory that is not pinned may be on its way still
  }
  ~DeviceMemory() { (void)cudaFree(data_); }
  std::byte* data() { return static_cast<std::byte*>(data_); }
  Memory Content() {
    Memory content(bytes_);
    REQUIRE(cudaMemcpy(content.data(), data_, bytes_, cudaMemcpyDeviceToHost) == cudaSuccess);
    return content;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

struct Case {
  layout::StridedCopy copy;
  ElementConversion conversion;
};

const Case kCases[] = {
    {{.source_offset = 6, .target_offset = 2, .row_bytes = 100'000}, ElementConversion::kNone},
    {{2, 64, 700, 510, 1022, 512}, ElementConversion::kNone},
    {{0, 32, 5, 1000, 0, 1024}, ElementConversion::kNone},   // rows that share a source
    {{2, 64, 700, 30, 1022, 30}, ElementConversion::kNone},  // narrow ones, apart on one side
    {{64, 2, 700, 30, 30, 1022}, ElementConversion::kNone},
    {{4, 64, 3000, 512, 1024, 2048}, ElementConversion::kF32ToBF16},
    {{.source_offset = 8, .target_offset = 4, .row_bytes = 6'000'000}, ElementConversion::kF32ToBF16},
    {{2, 64, 3000, 1024, 640, 2048}, ElementConversion::kBF16ToF32},
};

TEST_CASE("Copies between every pair of memories are those of the host engine") {
  const auto host = NewHostCopyEngine(nullptr);
  auto made = NewCopyEngine(nullptr);
  REQUIRE(made.ok());
  CopyEngine& engine = **made;
  const Memory source = Noise(13'000'000, 1);
  const Memory target = Noise(13'000'000, 2);
  for (const Case& one : kCases) {
    Memory expected = target;
    const PlacedCopy wanted{source.data(), expected.data(), one.copy, one.conversion};
    REQUIRE(host->Run({&wanted, 1}).ok());
    for (const bool from_device : {false, true}) {
      for (const bool to_device : {false, true}) {
        DeviceMemory device_source(source);
        DeviceMemory device_target(target);
        Memory host_target = target;
        const PlacedCopy placed{from_device ? device_source.data() : source.data(),
                                to_device ? device_target.data() : host_target.data(), one.copy, one.conversion};
        const Status copied = engine.Run({&placed, 1});
        INFO(copied.ToString() << " from device " << from_device << " to device " << to_device);
        REQUIRE(copied.ok());
        CHECK((to_device ? device_target.Content() : host_target) == expected);
      }
    }
  }
}

TEST_CASE("Pinned memory is copied to as any other, and is given back") {
  auto made = NewCopyEngine(nullptr);
  REQUIRE(made.ok());
  const Memory content = Noise(1 << 20, 3);
  DeviceMemory source(content);
  Memory target(content.size());
  const std::span<std::byte> all(target);
  for (int i = 0; i < 2; ++i) {
    const auto pinned = (*made)->Pin({&all, 1});
    INFO(pinned.status().ToString());
    REQUIRE(pinned.ok());
    CHECK_FALSE((*made)->Pin({&all, 1}).ok());  // it is
    CHECK((*made)->OnDevice(source.data()));
    CHECK_FALSE((*made)->OnDevice(target.data()));
    const PlacedCopy placed{source.data(), target.data(), {.row_bytes = content.size()}};
    REQUIRE((*made)->Run({&placed, 1}).ok());
    CHECK(target == content);
  }
}

}  // namespace
}  // namespace lockstep::exporter

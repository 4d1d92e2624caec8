// Memory of the stand-in's GPUs, for tests of what copies from them.
#pragma once

#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "export_plugin/exporter/copy_engine.h"
#include "tests/cuda/stand_in.h"

namespace lockstep::exporter {

using Memory = std::vector<std::byte>;

inline Memory Noise(size_t bytes, uint32_t seed) {
  std::mt19937 generator(seed);
  Memory noise(bytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(generator());
  return noise;
}

// Memory of `device` with the bytes of `content`, until the stand-in's next Reset(). The thread's device is as before.
inline std::byte* OnGpu(int device, const Memory& content) {
  int before = 0;
  void* memory = nullptr;
  REQUIRE(cudaGetDevice(&before) == cudaSuccess);
  REQUIRE(cudaSetDevice(device) == cudaSuccess);
  REQUIRE(cudaMalloc(&memory, content.size()) == cudaSuccess);
  REQUIRE(cudaSetDevice(before) == cudaSuccess);
  cuda::Write(memory, content);
  return static_cast<std::byte*>(memory);
}

inline std::unique_ptr<CopyEngine> NewEngine() {
  auto made = NewCopyEngine(nullptr);
  INFO(made.status().ToString());
  REQUIRE(made.ok());
  return *std::move(made);
}

inline void CheckContains(const Status& status, std::string_view part) {
  INFO(status.ToString());
  CHECK(status.message().find(part) != std::string::npos);
}

}  // namespace lockstep::exporter

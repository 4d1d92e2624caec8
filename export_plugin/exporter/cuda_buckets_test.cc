// On a GPU: bazel test --config=gpu //export_plugin/exporter:cuda_buckets_test. Over the stand-in for the CUDA runtime
// it is //export_plugin/exporter:cuda_buckets_on_stand_in_test.
#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "export_plugin/exporter/bucket_memory.h"
#include "kernels/cuda/sum_testing.h"

namespace lockstep::exporter {
namespace {

using Memory = std::vector<std::byte>;

Memory Noise(size_t bytes) {
  std::mt19937 generator(5);
  Memory noise(bytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(generator());
  return noise;
}

void Upload(std::byte* to, const Memory& bytes) {
  REQUIRE(cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyDefault) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("Headers go into a GPU's memory and back, whole and to their places") {
  auto buckets = NewBuckets(0, 1000);
  INFO(buckets.status().ToString());
  REQUIRE(buckets.ok());
  BucketMemory& memory = **buckets;
  CHECK(memory.on_device());
  cudaPointerAttributes attributes{};
  REQUIRE(cudaPointerGetAttributes(&attributes, memory.payload(1)) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeDevice);
  std::byte* const places[] = {memory.message(0), memory.message(1), memory.answer()};
  for (Version version = 1; version <= 3; ++version) {
    const BucketHeader header = MakeHeader({.kind = memory.bucket_kind(), .version = version}, ErrorCode::kOk, 5);
    REQUIRE(memory.WriteHeader(places[version - 1], header).ok());
  }
  for (Version version = 1; version <= 3; ++version) {
    const Result<BucketHeader> header = memory.ReadHeader(places[version - 1]);
    REQUIRE(header.ok());
    CHECK(header->version == version);
    CHECK(CheckHeader(*header, 0).ok());
  }
}

TEST_CASE("A payload's hash is the format's sum, of any length") {
  constexpr size_t kMost = 3'000'001;
  auto buckets = NewBuckets(0, kMost);
  REQUIRE(buckets.ok());
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{8}, size_t{1003}, kMost}) {
    const Memory payload = Noise(bytes);
    if (bytes > 0) Upload((*buckets)->payload(1), payload);
    const Result<uint64_t> hash = (*buckets)->PayloadHash(1, bytes);
    REQUIRE(hash.ok());
    INFO(bytes << " bytes");
    CHECK(*hash == kernels::cuda::FormatSum(payload));
  }
}

}  // namespace
}  // namespace lockstep::exporter

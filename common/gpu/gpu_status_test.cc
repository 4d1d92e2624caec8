#include "common/gpu/gpu_status.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "tests/cuda/stand_in.h"

namespace lockstep::gpu {
namespace {

TEST_CASE("Why no GPU is reached is said, and what to do") {
  cuda::Reset();
  CHECK(GpuTrouble().ok());
  cuda::SetDriver(0);
  CHECK_THAT(GpuTrouble(), FailsWith(ErrorCode::kNotFound, "CUDA finds no driver: install"));
  cuda::SetDriver(11'080);
  CHECK_THAT(GpuTrouble(),
             FailsWith(ErrorCode::kUnavailable, Cat("for CUDA 11.8, older than ", CUDART_VERSION / 1000, ".")));
  cuda::Reset();
  cuda::FailAlways("cudaGetDeviceCount", cudaErrorNoDevice);
  CHECK_THAT(GpuTrouble(), FailsWith(ErrorCode::kNotFound, "CUDA finds no GPU: see"));
  cuda::Reset();
  cuda::FailAlways("cudaGetDeviceCount", cudaErrorOperatingSystem);
  CHECK_THAT(GpuTrouble(), FailsWith(ErrorCode::kUnavailable, "cudaErrorOperatingSystem"));
}

TEST_CASE("CUDA's errors are said with its words, and those of memory by a code of their own") {
  CHECK(CudaStatus(cudaSuccess, "asking").ok());
  CHECK_THAT(CudaStatus(cudaErrorMemoryAllocation, "asking"),
             FailsWith(ErrorCode::kResourceExhausted, "CUDA: asking: "));
  CHECK_THAT(CudaStatus(cudaErrorInvalidValue, "asking"), FailsWith(ErrorCode::kIo, "cudaErrorInvalidValue"));
}

}  // namespace
}  // namespace lockstep::gpu

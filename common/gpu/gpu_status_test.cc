#include "common/gpu/gpu_status.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "tests/cuda/stand_in.h"

namespace lockstep::gpu {
namespace {

TEST_CASE("Why no GPU is reached is said, and what to do") {
  cuda::Reset();
  CHECK(GpuTrouble().ok());
  cuda::SetDriver(0);
  CHECK_THAT(GpuTrouble(), FailsWith(ErrorCode::kNotFound, "CUDA finds no driver: install"));
  cuda::SetDriver(12'020);
  CHECK_THAT(GpuTrouble(), FailsWith(ErrorCode::kUnavailable, "for CUDA 12.2, older than 13.0"));
  cuda::Reset();
  cuda::FailAlways("cudaGetDeviceCount", cudaErrorNoDevice);
  CHECK_THAT(GpuTrouble(), FailsWith(ErrorCode::kNotFound, "CUDA finds no GPU: see"));
  cuda::Reset();
  cuda::FailAlways("cudaGetDeviceCount", cudaErrorOperatingSystem);
  CHECK_THAT(GpuTrouble(), FailsWith(ErrorCode::kUnavailable, "cudaErrorOperatingSystem"));
}

TEST_CASE("A GPU is lost by the first error that ends a process' CUDA, and by no other") {
  CHECK(CudaStatus(cudaSuccess, "asking").ok());
  CHECK_THAT(CudaStatus(cudaErrorMemoryAllocation, "asking"),
             FailsWith(ErrorCode::kResourceExhausted, "CUDA: asking: "));
  CHECK_THAT(CudaStatus(cudaErrorInvalidValue, "asking"), FailsWith(ErrorCode::kIo, "cudaErrorInvalidValue"));
  CHECK(LostGpu().ok());
  CHECK_THAT(CudaStatus(cudaErrorECCUncorrectable, "writing"), FailsWith(ErrorCode::kIo, "cudaErrorECCUncorrectable"));
  CHECK_FALSE(CudaStatus(cudaErrorLaunchFailure, "writing again").ok());
  CHECK_THAT(LostGpu(), FailsWith(ErrorCode::kIo, "CUDA: writing: cudaErrorECCUncorrectable"));
}

}  // namespace
}  // namespace lockstep::gpu

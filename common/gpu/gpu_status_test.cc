#include "common/gpu/gpu_status.h"

#include <sys/wait.h>
#include <unistd.h>

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

TEST_CASE("Errors after which the process must be started again are known by number where a toolkit has no names") {
  // In processes of their own: the first stays.
  for (const int error : {226, 709, 721, 810, 911}) {
    const pid_t child = fork();
    if (child == 0) {
      (void)CudaStatus(static_cast<cudaError_t>(error), "writing");
      _exit(LostGpu().ok() ? 1 : 0);
    }
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child);
    INFO(error);
    CHECK(status == 0);
  }
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

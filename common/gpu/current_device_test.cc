#include "common/gpu/current_device.h"

#include <catch2/catch.hpp>
#include <functional>
#include <set>
#include <thread>

#include "tests/cuda/stand_in.h"

namespace lockstep::gpu {
namespace {

// The current device of a new thread after `body`.
int AfterInNewThread(const std::function<void()>& body) {
  int device = -1;
  std::thread([&] {
    body();
    (void)cudaGetDevice(&device);
  }).join();
  return device;
}

TEST_CASE("A thread that chose no device keeps the last one, and no context is made on device 0") {
  cuda::Reset(3);
  const int after = AfterInNewThread([] {
    CurrentDevice current;
    (void)current.Set(2);
  });
  CHECK(after == 2);
  CHECK(cuda::Contexts() == std::set<int>{2});
  CHECK_FALSE(HasContext(0));
  CHECK(HasContext(2));
}

TEST_CASE("A device that has a context is current again") {
  cuda::Reset(3);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  const int after = AfterInNewThread([] {
    CurrentDevice current;
    (void)current.Set(2);
    (void)current.Set(1);
  });
  CHECK(after == 0);
}

TEST_CASE("A device with a context is found without making one, the current one first") {
  cuda::Reset(3);
  const auto any = [] {
    CurrentDevice current;
    CHECK(current.SetAnyWithContext().ok());
    int device = -1;
    (void)cudaGetDevice(&device);
    return device;
  };
  CHECK(any() == 0);
  CHECK(cuda::Contexts().empty());
  std::thread([] { (void)cudaSetDevice(1); }).join();
  CHECK(any() == 1);
  std::thread([&] {
    (void)cudaSetDevice(2);
    CHECK(any() == 2);
  }).join();
  CHECK(cuda::Contexts() == std::set<int>{1, 2});
}

TEST_CASE("Where the driver does not say what has a context, no device is put back") {
  cuda::Reset(2);
  cuda::FailAlways("cudaGetDriverEntryPointByVersion", cudaErrorSymbolNotFound);
  const int after = AfterInNewThread([] {
    CurrentDevice current;
    (void)current.Set(1);
  });
  CHECK(after == 1);
}

}  // namespace
}  // namespace lockstep::gpu

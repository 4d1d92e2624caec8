#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/os/filesystem.h"
#include "common/os/temp_dir.h"

namespace lockstep::os {
namespace {

TEST_CASE("A tmpfs is memory, and its room is known") {
  const TempDir dir("/dev/shm");
  const auto found = FileSystemOf(dir.path());
  REQUIRE(found.ok());
  CHECK(found->name == "tmpfs");
  CHECK(found->in_memory);
  CHECK(found->free_bytes > 0);
}

TEST_CASE("Any other file system is not, and one without a name has a number") {
  const auto found = FileSystemOf("/proc");
  REQUIRE(found.ok());
  CHECK(found->name == "0x9fa0");
  CHECK_FALSE(found->in_memory);
}

TEST_CASE("The file system of what is not there is not found") {
  const auto found = FileSystemOf("/dev/shm/no such directory");
  CHECK_THAT(found, FailsWith(ErrorCode::kNotFound, "/dev/shm/no such directory"));
}

TEST_CASE("Exact bytes differ where rounded ones do not") {
  CHECK(ExactBytes(31'457'280) == "30.0 MiB (31457280 bytes)");
  CHECK(ExactBytes(31'457'281) == "30.0 MiB (31457281 bytes)");
}

}  // namespace
}  // namespace lockstep::os

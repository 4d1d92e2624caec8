#include "common/telemetry/address_file.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "common/base/status_testing.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"

namespace lockstep::telemetry {
namespace {

TEST_CASE("The address file holds the announced addresses until its owner ends") {
  const os::TempDir dir;
  const std::string path = dir.path() + "/addresses";
  {
    const auto file = *AddressFile::Create(path);
    CHECK_FALSE(std::filesystem::exists(path));
    REQUIRE(file->Announce({{"lanes", "[::1]:7701"}, {"grpc", "127.0.0.1:7700"}}).ok());
    CHECK(*os::ReadFile(path) == "{\"grpc\":\"127.0.0.1:7700\",\"lanes\":\"[::1]:7701\"}\n");
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("What a killed daemon left is gone before anything is announced") {
  const os::TempDir dir;
  const std::string path = dir.path() + "/addresses";
  REQUIRE(os::WriteFileAtomic(path, "of the past").ok());
  REQUIRE(AddressFile::Create(path).ok());
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("A process that announced nothing leaves the file of another alone") {
  const os::TempDir dir;
  const std::string path = dir.path() + "/addresses";
  {
    const auto never_listened = *AddressFile::Create(path);
    REQUIRE(os::WriteFileAtomic(path, "another's").ok());
  }
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("An address file that cannot be is an error that names it") {
  const os::TempDir dir;
  const Status directory = AddressFile::Create(dir.path()).status();
  CHECK_THAT(directory, FailsWith(ErrorCode::kIo, dir.path()));
  const Status missing = (*AddressFile::Create(dir.path() + "/nowhere/addresses"))->Announce({{"grpc", "[::1]:1"}});
  CHECK_THAT(missing, FailsWith(ErrorCode::kNotFound, "nowhere"));
}

}  // namespace
}  // namespace lockstep::telemetry

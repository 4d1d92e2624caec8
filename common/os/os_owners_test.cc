#include <fcntl.h>
#include <sys/file.h>

#include <catch2/catch.hpp>

#include "common/base/eventually.h"
#include "common/base/status_testing.h"
#include "common/os/child.h"
#include "common/os/owners.h"
#include "common/os/temp_dir.h"

namespace lockstep::os {
namespace {

// As an owner does it. Nothing: it is too late.
UniqueFd Own(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  return ::flock(file.get(), LOCK_SH | LOCK_NB) == 0 ? std::move(file) : UniqueFd();
}

TEST_CASE("Owners are gone when the last of them is, and none is added afterwards") {
  const TempDir dir;
  const std::string path = dir.File("owners");
  UniqueFd first = Own(path);
  UniqueFd second = Own(path);
  const Result<Owners> owners = Owners::Open(path);
  REQUIRE(owners.ok());
  first.Reset();
  CHECK_FALSE(owners->Gone());
  second.Reset();
  CHECK(owners->Gone());
  CHECK(owners->Gone());
  CHECK_FALSE(Own(path).valid());
}

TEST_CASE("An owner that is killed is gone") {
  const TempDir dir;
  const std::string path = dir.File("owners");
  UniqueFd held = Own(path);
  Child owner(::fork, [] {});
  held.Reset();
  const Result<Owners> owners = Owners::Open(path);
  REQUIRE(owners.ok());
  CHECK_FALSE(owners->Gone());
  owner.Kill();
  CHECK(Eventually([&] { return owners->Gone(); }));
}

TEST_CASE("Without a path the process has no owner, and a path without a file is named") {
  const TempDir dir;
  const Result<Owners> nobody = Owners::Open("");
  REQUIRE(nobody.ok());
  CHECK_FALSE(nobody->Gone());
  CHECK_THAT(Owners::Open(dir.File("missing")), FailsWith(ErrorCode::kNotFound, dir.File("missing")));
}

}  // namespace
}  // namespace lockstep::os

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "common/base/bytes.h"
#include "common/base/status_testing.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {
namespace {

size_t EntriesIn(const std::string& path) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path), {}));
}

TEST_CASE("A file written atomically reads back as it was, with its mode") {
  const TempDir dir;
  REQUIRE(WriteFileAtomic(dir.File("a"), "first", 0600).ok());
  REQUIRE(WriteFileAtomic(dir.File("a"), "second", 0640).ok());
  const Result<std::string> read = ReadFile(dir.File("a"));
  REQUIRE(read.ok());
  CHECK(*read == "second");
  struct stat info;
  REQUIRE(::stat(dir.File("a").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0640);
  CHECK(EntriesIn(dir.path()) == 1);
}

TEST_CASE("A failed atomic write names the path and leaves no temporary file") {
  const TempDir dir;
  REQUIRE(MakeDirs(dir.File("taken/full")).ok());
  const Status status = WriteFileAtomic(dir.File("taken"), "text");
  CHECK_THAT(status, FailsWith(ErrorCode::kIo, dir.File("taken")));
  CHECK(EntriesIn(dir.path()) == 1);
  CHECK_THAT(WriteFileAtomic(dir.File("missing/a"), "text"), FailsWith(ErrorCode::kNotFound, dir.File("missing/a")));
}

TEST_CASE("ReadFile refuses what is missing and what is too long") {
  const TempDir dir;
  CHECK_THAT(ReadFile(dir.File("none")), FailsWith(ErrorCode::kNotFound, dir.File("none")));
  REQUIRE(WriteFileAtomic(dir.File("long"), std::string(100'000, 'x')).ok());
  CHECK_THAT(ReadFile(dir.File("long"), 99'999),
             FailsWith(ErrorCode::kResourceExhausted, dir.File("long") + " is longer than "));
  CHECK(ReadFile(dir.File("long"), 100'000).ok());
}

TEST_CASE("ReadAt and WriteAll reach any offset, and a short file is corrupt") {
  const TempDir dir;
  const UniqueFd fd(::open(dir.File("data").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(fd.valid());
  REQUIRE(WriteAll(fd.get(), 1000, AsBytes(std::string_view("hello")), "data").ok());
  std::string read(5, ' ');
  REQUIRE(ReadAt(fd.get(), 1000, std::as_writable_bytes(std::span(read)), "data").ok());
  CHECK(read == "hello");
  const Status status = ReadAt(fd.get(), 1001, std::as_writable_bytes(std::span(read)), "data");
  CHECK_THAT(status, FailsWith(ErrorCode::kCorrupt, "data ends at byte 1005"));
}

TEST_CASE("MakeDirs makes parents, accepts what exists, and refuses a file in its way") {
  const TempDir dir;
  REQUIRE(MakeDirs(dir.File("a/b/c"), 0750).ok());
  REQUIRE(MakeDirs(dir.File("a/b/c")).ok());
  struct stat info;
  REQUIRE(::stat(dir.File("a/b").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0750);
  REQUIRE(WriteFileAtomic(dir.File("file"), "").ok());
  CHECK_THAT(MakeDirs(dir.File("file")), FailsWith(ErrorCode::kIo, dir.File("file") + ": File exists"));
  CHECK_THAT(MakeDirs(dir.File("file/below")), FailsWith(ErrorCode::kIo, dir.File("file/below") + ": Not a directory"));
}

TEST_CASE("CheckWritableDir distinguishes a usable directory from a missing one and from a file") {
  const TempDir dir;
  CHECK(CheckWritableDir(dir.path()).ok());
  CHECK(EntriesIn(dir.path()) == 0);
  CHECK_THAT(CheckWritableDir(dir.File("none")), FailsWith(ErrorCode::kNotFound, dir.File("none")));
  REQUIRE(WriteFileAtomic(dir.File("file"), "").ok());
  CHECK_THAT(CheckWritableDir(dir.File("file")),
             FailsWith(ErrorCode::kBadData, dir.File("file") + " is not a directory"));
  CHECK_THAT(CheckWritableDir("/proc/self"),
             FailsWith(ErrorCode::kNotFound, "directory /proc/self cannot be written by uid"));
}

TEST_CASE("A directory is our own only where no other user replaces what leads to it") {
  const TempDir dir;
  const std::string own = dir.File("way/own");
  const std::string link = dir.File("link");
  REQUIRE(MakeDirs(own).ok());
  REQUIRE(::symlink("way", link.c_str()) == 0);
  REQUIRE(::symlink("circle", dir.File("circle").c_str()) == 0);
  CHECK(CheckOwnDir(own).ok());
  CHECK(CheckOwnDir(link + "/own/").ok());
  CHECK(CheckOwnDir(link + "/../way/own").ok());
  CHECK_FALSE(CheckOwnDir(dir.File("circle")).ok());
  CHECK_THAT(CheckWayTo(dir.File("way"), 12345),
             FailsWith(ErrorCode::kPermission, "directory /tmp lets others", "mode 1777"));
  REQUIRE(::chmod(dir.File("way").c_str(), 0777) == 0);
  CHECK_THAT(CheckOwnDir(own), FailsWith(ErrorCode::kPermission, dir.File("way") + " lets others", "mode 0777"));
  CHECK_THAT(CheckOwnDir(link + "/own"), FailsWith(ErrorCode::kPermission, dir.File("way") + " lets others"));
  REQUIRE(::chmod(dir.File("way").c_str(), 01777) == 0);
  CHECK(CheckOwnDir(own).ok());
  if (::geteuid() != 0) return;  // only root can give directories and links away
  REQUIRE(::lchown(link.c_str(), 12345, 12345) == 0);
  CHECK_THAT(CheckOwnDir(link + "/own"), FailsWith(ErrorCode::kPermission, link + " is a link made by uid 12345"));
  REQUIRE(::chmod(dir.File("way").c_str(), 0755) == 0);
  REQUIRE(::chown(dir.File("way").c_str(), 12345, 12345) == 0);
  CHECK_THAT(CheckOwnDir(own), FailsWith(ErrorCode::kPermission, dir.File("way") + " lets others", "to uid 12345"));
}

TEST_CASE("RemoveTree removes everything below and does not follow links") {
  const TempDir dir;
  REQUIRE(MakeDirs(dir.File("tree/deep")).ok());
  REQUIRE(MakeDirs(dir.File("kept")).ok());
  std::filesystem::create_directory_symlink(dir.File("kept"), dir.File("tree/link"));
  REQUIRE(RemoveTree(dir.File("tree")).ok());
  CHECK_FALSE(std::filesystem::exists(dir.File("tree")));
  CHECK(std::filesystem::exists(dir.File("kept")));
  CHECK(RemoveTree(dir.File("tree")).ok());
}

}  // namespace
}  // namespace lockstep::os

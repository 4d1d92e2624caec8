#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <vector>

#include "common/base/status_testing.h"
#include "common/os/sealed_memfd.h"
#include "common/os/segment.h"
#include "common/os/temp_dir.h"

namespace lockstep::os {
namespace {

constexpr uint64_t kBytes = 12'345;

TEST_CASE("A tmpfs segment is zero, private to its owner, and the same memory in each mapping") {
  const TempDir dir("/dev/shm");
  const std::string path = dir.File("seg");
  Result<MappedSegment> made = CreateTmpfsSegment(path, kBytes);
  REQUIRE(made.ok());
  CHECK(made->bytes() == kBytes);
  CHECK(made->data()[kBytes - 1] == std::byte{0});
  made->data()[7] = std::byte{42};
  const Result<MappedSegment> opened = OpenSegment(path, kBytes, Access::kReadOnly);
  REQUIRE(opened.ok());
  CHECK(opened->data()[7] == std::byte{42});
  CHECK(std::filesystem::status(path).permissions() == std::filesystem::perms{0600});
  CHECK_THAT(CreateTmpfsSegment(path, kBytes), FailsWith(ErrorCode::kState, path + " exists already"));
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("A segment that does not fit its tmpfs is an error with numbers and leaves no file") {
  const TempDir dir("/dev/shm");
  struct statvfs room;
  REQUIRE(::statvfs("/dev/shm", &room) == 0);
  const uint64_t too_much = uint64_t{room.f_blocks} * room.f_frsize + (1 << 20);
  const Result<MappedSegment> made = CreateTmpfsSegment(dir.File("seg"), too_much);
  REQUIRE_THAT(made, FailsWith(ErrorCode::kResourceExhausted, dir.File("seg"), "free"));
  CHECK_FALSE(std::filesystem::exists(dir.File("seg")));
}

TEST_CASE("Room taken for a larger segment changes nothing, and is there when it gets its size") {
  const TempDir dir("/dev/shm");
  const std::string path = dir.File("seg");
  Result<MappedSegment> segment = CreateTmpfsSegment(path, kBytes);
  REQUIRE(segment.ok());
  segment->data()[7] = std::byte{42};
  const auto blocks = [&] {
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  };
  const uint64_t before = blocks();
  struct statvfs room;
  REQUIRE(::statvfs("/dev/shm", &room) == 0);
  CHECK_THAT(ReserveRoom(*segment, uint64_t{room.f_blocks} * room.f_frsize + (1 << 20), path),
             FailsWith(ErrorCode::kResourceExhausted, path, "free"));
  CHECK(blocks() == before);
  REQUIRE(ReserveRoom(*segment, 1, path).ok());
  CHECK(blocks() == before);
  REQUIRE(ReserveRoom(*segment, 1 << 20, path).ok());
  CHECK(blocks() == 1 << 20);
  CHECK(std::filesystem::file_size(path) == kBytes);
  for (const uint64_t bytes : {uint64_t{1} << 20, uint64_t{4096}}) {
    segment = Resize(*std::move(segment), bytes, path);
    REQUIRE(segment.ok());
    CHECK(segment->bytes() == bytes);
    CHECK(std::filesystem::file_size(path) == bytes);
    CHECK(blocks() == bytes);
    CHECK(segment->data()[7] == std::byte{42});
    segment->data()[bytes - 1] = std::byte{1};
  }
}

TEST_CASE("A segment of another size, or something that is no file, is refused") {
  const TempDir dir;
  REQUIRE(CreateTmpfsSegment(dir.File("seg"), kBytes).ok());
  CHECK_THAT(OpenSegment(dir.File("seg"), kBytes + 1, Access::kReadWrite),
             FailsWith(ErrorCode::kBadData, dir.File("seg") + " has "));
  CHECK_THAT(OpenSegment(dir.File("none"), kBytes, Access::kReadWrite),
             FailsWith(ErrorCode::kNotFound, "open segment " + dir.File("none")));
  CHECK_THAT(CreateTmpfsSegment(dir.File("empty"), 0), FailsWith(ErrorCode::kBadData, dir.File("empty")));
  CHECK_FALSE(std::filesystem::exists(dir.File("empty")));
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Result<MappedSegment> adopted = AdoptSegment(std::move(null), kBytes, Access::kReadWrite, "null");
  CHECK_THAT(adopted, FailsWith(ErrorCode::kBadData, "segment null is not a regular file"));
}

TEST_CASE("A memfd segment cannot be resized by a holder of its descriptor, and can be adopted") {
  Result<MappedSegment> made = CreateMemfdSegment("half-a", kBytes);
  REQUIRE(made.ok());
  CHECK(::ftruncate(made->fd(), 0) == -1);
  CHECK(::ftruncate(made->fd(), 1 << 20) == -1);
  made->data()[0] = std::byte{9};
  const Result<MappedSegment> adopted = AdoptSegment(UniqueFd(::dup(made->fd())), kBytes, Access::kReadWrite, "half-a");
  REQUIRE(adopted.ok());
  CHECK(adopted->data()[0] == std::byte{9});
}

TEST_CASE("Moving a segment keeps its address and empties the source") {
  Result<MappedSegment> made = CreateMemfdSegment("moved", kBytes);
  REQUIRE(made.ok());
  std::byte* const data = made->data();
  MappedSegment moved = *std::move(made);
  MappedSegment again;
  again = std::move(moved);
  CHECK(again.data() == data);
  CHECK(again.valid());
  CHECK_FALSE(moved.valid());  // NOLINT: the moved-from state is part of the contract
  again.data()[0] = std::byte{1};
}

TEST_CASE("A sealed memfd has what was appended, and cannot be changed any more") {
  SealedMemfd memfd("lists");
  std::vector<std::byte> all;
  for (const uint64_t size :
       {uint64_t{3}, uint64_t{70'000}, SealedMemfd::kMostAtOnce, uint64_t{1}, uint64_t{1} << 20}) {
    const std::vector<std::byte> piece(size, static_cast<std::byte>(size % 251));
    if (size % 2 == 0 && size <= SealedMemfd::kMostAtOnce) {
      std::copy(piece.begin(), piece.end(), memfd.Take(size));
    } else {
      memfd.Append(piece);
    }
    all.insert(all.end(), piece.begin(), piece.end());
  }
  CHECK(memfd.size() == all.size());
  Result<UniqueFd> sealed = std::move(memfd).Seal();
  REQUIRE(sealed.ok());
  std::vector<std::byte> found(all.size() + 1);
  CHECK(::pread(sealed->get(), found.data(), found.size(), 0) == static_cast<ssize_t>(all.size()));
  found.pop_back();
  CHECK(found == all);
  CHECK(::pwrite(sealed->get(), all.data(), 1, 0) == -1);
  CHECK(::ftruncate(sealed->get(), 1) == -1);
  CHECK(::ftruncate(sealed->get(), static_cast<off_t>(all.size()) + 1) == -1);
  CHECK_FALSE(AdoptSegment(UniqueFd(::dup(sealed->get())), all.size(), Access::kReadWrite, "lists").ok());
  CHECK(AdoptSegment(UniqueFd(::dup(sealed->get())), all.size(), Access::kReadOnly, "lists").ok());
}

}  // namespace
}  // namespace lockstep::os

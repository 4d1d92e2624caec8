// Write batches against FORMAT.md, and against the memory that the same writes give.
#include "raas_receiver/engine/placement/writes/write_batch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <map>
#include <numeric>

#include "common/base/document_testing.h"
#include "common/base/status_testing.h"
#include "raas_receiver/engine/placement/writes/write_batch_testing.h"

namespace lockstep::engine {
namespace {

Bytes Content(const os::UniqueFd& fd) {
  Bytes bytes(static_cast<size_t>(::lseek(fd.get(), 0, SEEK_END)));
  REQUIRE(::pread(fd.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return bytes;
}

// The pieces of FORMAT.md's example, and the data that they are of.
struct Given {
  Bytes data = Bytes(64);

  Given() {
    const auto put = [&](size_t at, std::initializer_list<uint8_t> bytes) {
      for (const uint8_t byte : bytes) data[at++] = std::byte{byte};
    };
    put(6, {0x11, 0x11});
    put(20, {0x22, 0x22});
    put(36, {0x33, 0x33, 0x33, 0x33});
    put(40, {0xa1, 0xa2, 0xa3, 0xff, 0xb1, 0xb2, 0xb3});
  }
  Status Fill(BatchWriter& writer) const {
    const std::vector<uint32_t> first{2}, second{16}, wide{0};
    LS_RETURN_IF_ERROR(writer.Scatter(0, 2, 4, 4, first));
    LS_RETURN_IF_ERROR(writer.Scatter(0, 2, 4, 54, second));
    LS_RETURN_IF_ERROR(writer.Scatter(1, 4, 36, (uint64_t{1} << 31) + 8, wide));
    LS_RETURN_IF_ERROR(writer.Copy(0, {40, 256, 2, 3, 4, 16}));
    return writer.Zero(0, {.offset = 512, .row_bytes = 8});
  }
};

// Keeps what is passed on.
struct Passed {
  std::vector<os::UniqueFd> batches;

  BatchWriter::Pass pass() {
    return [this](const os::UniqueFd& batch) {
      batches.emplace_back(::dup(batch.get()));
      return OkStatus();
    };
  }
};

TEST_CASE("A write batch is FORMAT.md's example, and cannot be changed any more") {
  const Given given;
  Passed passed;
  BatchWriter writer(given.data, passed.pass());
  REQUIRE(writer.Flush().ok());
  CHECK(passed.batches.empty());
  REQUIRE(given.Fill(writer).ok());
  CHECK(writer.written_bytes() == 2 * 2 + 4 + 6 + 8);
  REQUIRE(writer.Flush().ok());
  REQUIRE(passed.batches.size() == 1);
  const os::UniqueFd* const sealed = passed.batches.data();
  CHECK(Content(*sealed) == HexBlock("raas_receiver/engine/placement/writes/FORMAT.md", "write_batch"));
  REQUIRE(writer.Flush().ok());
  CHECK(passed.batches.size() == 1);
  const int seals = ::fcntl(sealed->get(), F_GET_SEALS);
  CHECK((seals & F_SEAL_WRITE) != 0);
  CHECK((seals & F_SEAL_SHRINK) != 0);
  CHECK((seals & F_SEAL_GROW) != 0);
  CHECK(::pwrite(sealed->get(), "x", 1, 0) == -1);
  CHECK(::mmap(nullptr, 64, PROT_READ | PROT_WRITE, MAP_SHARED, sealed->get(), 0) == MAP_FAILED);
}

TEST_CASE("A write batch gives each byte that its pieces give, at its place") {
  const Given given;
  Passed passed;
  BatchWriter writer(given.data, passed.pass());
  REQUIRE((given.Fill(writer).ok() && writer.Flush().ok()));
  const Bytes batch = Content(passed.batches.at(0));
  std::map<std::pair<uint32_t, uint64_t>, int> got;
  REQUIRE(ReadWriteBatch(batch, [&](uint32_t memory, uint64_t offset, std::byte value) {
    CHECK(got.emplace(std::pair(memory, offset), std::to_integer<int>(value)).second);
  }));
  std::map<std::pair<uint32_t, uint64_t>, int> expected{
      {{0, 6}, 0x11},   {{0, 7}, 0x11},   {{0, 70}, 0x22},  {{0, 71}, 0x22},  {{0, 256}, 0xa1},
      {{0, 257}, 0xa2}, {{0, 258}, 0xa3}, {{0, 272}, 0xb1}, {{0, 273}, 0xb2}, {{0, 274}, 0xb3}};
  for (uint64_t byte = 0; byte < 4; ++byte) expected[{1, (uint64_t{1} << 31) + 8 + byte}] = 0x33;
  for (uint64_t byte = 512; byte < 520; ++byte) expected[{0, byte}] = 0;
  CHECK(got == expected);
}

TEST_CASE("A write batch that is full is passed on, and none is larger than it may be") {
  constexpr uint64_t kMost = 4096;
  const Bytes data(100'000, std::byte{7});
  Passed passed;
  BatchWriter writer(data, passed.pass(), kMost);
  std::vector<uint32_t> positions(3000);
  std::iota(positions.begin(), positions.end(), 0u);
  for (uint32_t& position : positions) position *= 2;
  REQUIRE(writer.Scatter(0, 2, 0, 0, std::span(positions).first(3)).ok());
  CHECK(passed.batches.empty());
  REQUIRE(writer.Scatter(0, 2, 0, 1000, positions).ok());  // more than one write batch has room for
  REQUIRE(writer.Copy(0, {.target_offset = 10'000, .row_bytes = 20'000}).ok());  // likewise
  for (uint64_t i = 0; i < 200; ++i) REQUIRE(writer.Zero(0, {.offset = 50'000 + i, .row_bytes = 1}).ok());
  REQUIRE(writer.Flush().ok());
  std::map<uint64_t, int> got;
  uint64_t bytes = 0;
  for (const os::UniqueFd& fd : passed.batches) {
    const Bytes batch = Content(fd);
    CHECK(batch.size() <= kMost);
    if (&fd != &passed.batches.back()) CHECK(batch.size() > kMost * 2 / 3);
    REQUIRE(ReadWriteBatch(batch, [&](uint32_t, uint64_t offset, std::byte value) {
      CHECK(got.emplace(offset, std::to_integer<int>(value)).second);
    }));
    bytes += batch.size();
  }
  CHECK(got.size() == writer.written_bytes());
  CHECK(got.size() == 6 + 6000 + 20'000 + 200);
  CHECK((bytes <= writer.taken_bytes() + passed.batches.size() * 128 && bytes > writer.taken_bytes() * 4 / 5));
}

TEST_CASE("Copies that continue one another travel as one") {
  const Bytes data(10'000, std::byte{7});
  Passed passed;
  BatchWriter writer(data, passed.pass());
  for (uint64_t block = 0; block < 4; ++block)
    REQUIRE(writer.Copy(0, {1000 * block, 1000 * block, 1, 1000, 0, 0}).ok());
  REQUIRE(writer.Copy(1, {4000, 4000, 1, 1000, 0, 0}).ok());
  REQUIRE(writer.Flush().ok());
  WriteBatchHeader header;
  const Bytes batch = Content(passed.batches.at(0));
  std::memcpy(&header, batch.data(), sizeof header);
  CHECK(header.copies == 2);
}

TEST_CASE(
    "What the receiver of a write batch answers is the answer of the call, and the next write batch is a new one") {
  const Bytes data(10'000);
  Status answer(ErrorCode::kIo, "passed on");
  BatchWriter writer(data, [&](const os::UniqueFd&) { return answer; });
  REQUIRE(writer.Copy(0, {.row_bytes = 100}).ok());
  CHECK(writer.Flush().message() == "passed on");
  CHECK(writer.Flush().ok());  // it is empty
  answer = OkStatus();
  REQUIRE(writer.Copy(0, {.row_bytes = 100}).ok());
  CHECK(writer.Flush().ok());
}

}  // namespace
}  // namespace lockstep::engine

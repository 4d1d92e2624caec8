// Portions against FORMAT.md, and against the memory that the same writes give.
#include "raas_receiver/placement/writes/portion.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <sstream>

#include "common/base/status_testing.h"
#include "raas_receiver/placement/writes/portion_testing.h"

namespace lockstep::placement {
namespace {

Bytes Content(const os::UniqueFd& fd) {
  Bytes bytes(static_cast<size_t>(::lseek(fd.get(), 0, SEEK_END)));
  REQUIRE(::pread(fd.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return bytes;
}

Bytes Example(const std::string& name) {
  std::ifstream document("raas_receiver/placement/writes/FORMAT.md");
  Bytes bytes;
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line == "```hex " + name) inside = true;
    if (line == "```") inside = false;
    std::istringstream words(line);
    size_t at = 0;
    if (!inside || !(words >> std::hex >> at)) continue;
    bytes.resize(at);
    for (unsigned byte = 0; words >> byte;) bytes.push_back(static_cast<std::byte>(byte));
  }
  return bytes;
}

struct Given {
  std::vector<uint32_t> narrow_offsets{6, 70};
  std::vector<uint16_t> narrow{0x1111, 0x2222};
  std::vector<uint32_t> wide_offsets{8};
  std::vector<uint32_t> wide{0x33333333};
  std::array<uint8_t, 7> rows{0xa1, 0xa2, 0xa3, 0xff, 0xb1, 0xb2, 0xb3};

  bool Fill(PortionBuilder& builder) const {
    const auto* source = reinterpret_cast<const std::byte*>(rows.data());
    return builder.Scatter(0, {0, 2, narrow_offsets, reinterpret_cast<const std::byte*>(narrow.data())}) &&
           builder.Scatter(1, {uint64_t{1} << 31, 4, wide_offsets, reinterpret_cast<const std::byte*>(wide.data())}) &&
           builder.Copy(0, {.target_offset = 256, .rows = 2, .row_bytes = 3, .source_pitch = 4, .target_pitch = 16},
                        source) &&
           builder.Zero(0, {.offset = 512, .row_bytes = 8});
  }
};

TEST_CASE("A portion is FORMAT.md's example, and cannot be changed any more") {
  PortionBuilder builder;
  CHECK(builder.empty());
  const Given given;
  REQUIRE(given.Fill(builder));
  CHECK_FALSE(builder.empty());
  const auto sealed = builder.Seal();
  REQUIRE(sealed.ok());
  CHECK(builder.empty());
  CHECK(Content(*sealed) == Example("portion"));
  const int seals = ::fcntl(sealed->get(), F_GET_SEALS);
  CHECK((seals & F_SEAL_WRITE) != 0);
  CHECK((seals & F_SEAL_SHRINK) != 0);
  CHECK((seals & F_SEAL_GROW) != 0);
  CHECK(::pwrite(sealed->get(), "x", 1, 0) == -1);
  CHECK(::mmap(nullptr, 64, PROT_READ | PROT_WRITE, MAP_SHARED, sealed->get(), 0) == MAP_FAILED);
}

TEST_CASE("A portion gives each byte that its pieces give, at its place") {
  PortionBuilder builder;
  const Given given;
  REQUIRE(given.Fill(builder));
  const Bytes portion = Content(*builder.Seal());
  std::map<std::pair<uint32_t, uint64_t>, int> got;
  REQUIRE(ReadPortion(portion, [&](uint32_t memory, uint64_t offset, std::byte value) {
    CHECK(got.emplace(std::pair(memory, offset), std::to_integer<int>(value)).second);
  }));
  std::map<std::pair<uint32_t, uint64_t>, int> expected{
      {{0, 6}, 0x11},   {{0, 7}, 0x11},   {{0, 70}, 0x22},  {{0, 71}, 0x22},  {{0, 256}, 0xa1},
      {{0, 257}, 0xa2}, {{0, 258}, 0xa3}, {{0, 272}, 0xb1}, {{0, 273}, 0xb2}, {{0, 274}, 0xb3}};
  for (uint64_t byte = 0; byte < 4; ++byte) expected[{1, (uint64_t{1} << 31) + 8 + byte}] = 0x33;
  for (uint64_t byte = 512; byte < 520; ++byte) expected[{0, byte}] = 0;
  CHECK(got == expected);
}

TEST_CASE("A portion that is full takes nothing more, and is never larger than it may be") {
  constexpr uint64_t kMost = 4096;
  PortionBuilder builder(kMost);
  const std::vector<uint32_t> offsets{0, 2, 4};
  const Bytes values(8, std::byte{7});
  int runs = 0;
  int copies = 0;
  while (builder.Scatter(0, {0, 2, offsets, values.data()})) {
    ++runs;
    if (!builder.Copy(0, {.row_bytes = 5}, values.data()) || !builder.Zero(0, {.row_bytes = 1})) break;
    ++copies;
  }
  CHECK(runs > 10);
  const auto sealed = builder.Seal();
  REQUIRE(sealed.ok());
  const Bytes portion = Content(*sealed);
  CHECK(portion.size() <= kMost);
  CHECK(portion.size() > kMost * 3 / 4);
  PortionHeader header;
  std::memcpy(&header, portion.data(), sizeof header);
  CHECK(header.runs == static_cast<uint32_t>(runs));
  CHECK(header.zeros == static_cast<uint32_t>(copies));
  CHECK(builder.Scatter(0, {0, 2, offsets, values.data()}));  // it begins anew
}

TEST_CASE("A piece of the promised size always fits an empty portion") {
  PortionBuilder builder(4096);
  const Bytes source(builder.piece_bytes());
  CHECK(builder.Copy(0, {.row_bytes = builder.piece_bytes()}, source.data()));
  const std::vector<uint32_t> offsets(builder.piece_bytes() / 5);
  PortionBuilder other(4096);
  CHECK(other.Scatter(0, {0, 1, offsets, source.data()}));
}

}  // namespace
}  // namespace lockstep::placement

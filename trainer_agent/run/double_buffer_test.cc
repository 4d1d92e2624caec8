#include "trainer_agent/run/double_buffer.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "common/base/status_testing.h"
#include "common/model/safetensors.h"

namespace lockstep::run {
namespace {

std::shared_ptr<const model::ModelLayout> Layout() {
  return *model::ModelLayout::Create({{"w", model::DType::kBF16, {5000}, 0}}, 4096);
}

std::unique_ptr<DoubleBuffer> Fresh() {
  auto buffer = DoubleBuffer::Create("actor", RandomId<RunId>(), *Layout(), 2, os::CreateMemfdSegment);
  REQUIRE(buffer.ok());
  return *std::move(buffer);
}

Result<std::unique_ptr<DoubleBuffer>> ReopenOf(const DoubleBuffer& buffer) {
  const auto adopt = [&](size_t i, uint64_t bytes) {
    return os::AdoptSegment(os::UniqueFd(dup(buffer.fds()[i])), bytes, os::Access::kReadWrite, "segment");
  };
  LS_ASSIGN_OR_RETURN(os::MappedSegment control, adopt(0, ControlSegment::BytesFor(*buffer.layout())));
  return DoubleBuffer::Reopen(std::move(control), [&](const std::string& name, uint64_t bytes) {
    return adopt(name == "slot-0" ? 1 : 2, bytes);
  });
}

TEST_CASE("What is written into an open control segment moves nothing: where things lie was read once") {
  const auto buffer = Fresh();
  buffer->BeginWrite(1);
  buffer->Commit(0, 77);
  const model::Manifest manifest{.held = {buffer->run(), 1},
                                 .block_hashes = std::vector<uint64_t>(buffer->layout()->block_count(), 5),
                                 .digest = {}};
  buffer->RecordManifest(0, manifest);
  const RunId run = buffer->run();
  const uint64_t image_bytes = buffer->image_bytes();
  auto control = os::AdoptSegment(os::UniqueFd(dup(buffer->fds()[0])), ControlSegment::BytesFor(*buffer->layout()),
                                  os::Access::kReadWrite, "control");
  REQUIRE(control.ok());
  std::memset(control->data(), 0xff, sizeof(ControlHeader));
  CHECK(buffer->run() == run);
  CHECK(buffer->ranks() == 2);
  CHECK(buffer->image_bytes() == image_bytes);
  CHECK(buffer->data(1) - buffer->data(0) != 0);
  const auto recorded = buffer->control().RecordedManifest(0);
  REQUIRE(recorded);
  CHECK(recorded->block_hashes == manifest.block_hashes);
  // A slot in a state that there is not is empty.
  std::memset(control->data() + sizeof(ControlHeader), 0xff, sizeof(SlotRecord));
  CHECK(buffer->control().state(0) == SlotState::kEmpty);
  CHECK(buffer->control().version(0) == 0);
  CHECK_FALSE(buffer->control().RecordedManifest(0));
}

TEST_CASE("A slot is a safetensors image and versions alternate between the slots") {
  const auto buffer = Fresh();
  const auto header = model::SafetensorsHeader(*Layout());
  CHECK(std::memcmp(buffer->data(0) - buffer->data_offset(), header.data(), header.size()) == 0);
  CHECK(buffer->BeginWrite(1) == 0);
  CHECK_FALSE(buffer->NewestCommitted());
  buffer->Commit(0, 77);
  CHECK(buffer->NewestCommitted() == std::optional<size_t>(0));
  CHECK(buffer->BeginWrite(2) == 1);
  buffer->Drop(1);
  CHECK(buffer->BeginWrite(3) == 1);
  buffer->Commit(1, 78);
  CHECK(buffer->BeginWrite(4) == 0);
  CHECK(buffer->control().version(0) == 4);
  CHECK(buffer->control().state(0) == SlotState::kWriting);
}

TEST_CASE("Only a committed version can be read, and only under its own number") {
  const auto buffer = Fresh();
  Bytes read;
  const auto use = [&](ByteView bytes) { read.assign(bytes.begin(), bytes.end()); };
  CHECK_THAT(buffer->UseBytes(1, {0, 10}, use), FailsWith(ErrorCode::kState, "version 1 is no longer in memory"));
  buffer->BeginWrite(1);
  std::memset(buffer->data(0), 7, 10000);
  CHECK_THAT(buffer->UseBytes(1, {0, 10}, use), FailsWith(ErrorCode::kState, "version 1 is no longer in memory"));
  CHECK(read.empty());
  buffer->Commit(0, 1);
  REQUIRE(buffer->UseBytes(1, {8192, 1808}, use).ok());
  CHECK(read == Bytes(1808, std::byte{7}));
  CHECK_THAT(buffer->UseBytes(2, {0, 10}, use), FailsWith(ErrorCode::kState, "version 2 is no longer in memory"));
}

TEST_CASE("Readers never see a slot that is being written, and writers wait for no more than a use of its bytes") {
  const auto buffer = Fresh();
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::thread reader([&] {
    for (Version version = 1; !stop; version = version % 200 + 1) {
      (void)buffer->UseBytes(version, {0, 4096}, [&](ByteView block) {
        for (const std::byte byte : block) torn += byte != static_cast<std::byte>(version);
      });
    }
  });
  for (Version version = 1; version <= 200; ++version) {
    const size_t slot = buffer->BeginWrite(version);
    std::memset(buffer->data(slot), static_cast<int>(version), 10000);
    buffer->Commit(slot, 1);
  }
  stop = true;
  reader.join();
  CHECK(torn == 0);
}

TEST_CASE("State and manifests survive the agent") {
  const auto buffer = Fresh();
  buffer->BeginWrite(5);
  buffer->Commit(0, 99);
  const model::Manifest manifest{
      .held = {buffer->run(), 5}, .block_hashes = {1, 2, 3}, .digest = RandomId<ManifestDigest>()};
  buffer->RecordManifest(0, manifest);
  buffer->BeginWrite(6);
  const auto again = ReopenOf(*buffer);
  REQUIRE(again.ok());
  CHECK((*again)->run() == buffer->run());
  CHECK((*again)->model() == "actor");
  CHECK((*again)->ranks() == 2);
  CHECK((*again)->control().version(0) == 5);
  CHECK((*again)->control().committed_unix_ns(0) == 99);
  CHECK((*again)->control().state(1) == SlotState::kWriting);
  REQUIRE((*again)->control().RecordedManifest(0));
  CHECK((*again)->control().RecordedManifest(0)->block_hashes == manifest.block_hashes);
  CHECK((*again)->control().RecordedManifest(0)->digest == manifest.digest);
  CHECK_FALSE((*again)->control().RecordedManifest(1));
  CHECK((*again)->BeginWrite(6) == 1);
  buffer->BeginWrite(7);
}

TEST_CASE("The number of a version that was committed and dropped outlives slot and agent; that of no other does") {
  const auto buffer = Fresh();
  for (const Version version : {1, 5}) buffer->Commit(buffer->BeginWrite(version), 1);
  CHECK(buffer->control().newest_dropped() == 0);
  buffer->Drop(1);
  CHECK(buffer->control().newest_dropped() == 5);
  buffer->Drop(buffer->BeginWrite(6));
  buffer->BeginWrite(7);
  CHECK((*ReopenOf(*buffer))->control().newest_dropped() == 5);
}

TEST_CASE("A label is its version's alone: it does not count for another version in its slot") {
  const auto buffer = Fresh();
  buffer->BeginWrite(1);
  buffer->Commit(0, 77, "step 5");
  CHECK(buffer->control().label(0) == "step 5");
  auto control = os::AdoptSegment(os::UniqueFd(dup(buffer->fds()[0])), ControlSegment::BytesFor(*buffer->layout()),
                                  os::Access::kReadWrite, "control");
  REQUIRE(control.ok());
  const uint64_t state = 3 << 8 | static_cast<uint64_t>(SlotState::kCommitted);
  std::memcpy(control->data() + sizeof(ControlHeader), &state, sizeof state);
  const auto reopened = ReopenOf(*buffer);
  REQUIRE(reopened.ok());
  CHECK((*reopened)->control().version(0) == 3);
  CHECK((*reopened)->control().label(0).empty());
}

TEST_CASE("A damaged control segment is refused") {
  const auto buffer = Fresh();
  const auto control = os::AdoptSegment(os::UniqueFd(dup(buffer->fds()[0])),
                                        ControlSegment::BytesFor(*buffer->layout()), os::Access::kReadWrite, "control");
  const auto check_damaged = [&](size_t at, ErrorCode code, const std::string& text) {
    control->data()[at] ^= std::byte{1};
    CHECK_THAT(ReopenOf(*buffer), FailsWith(code, text));
    control->data()[at] ^= std::byte{1};
  };
  check_damaged(0, ErrorCode::kProtocol, "control segment: it does not start with");
  check_damaged(9, ErrorCode::kProtocol, "control segment: format 257 is not known here");
  check_damaged(10, ErrorCode::kProtocol, "control segment: its header has 257 bytes, not 256");
  for (const size_t at : {20, 40, 60, 100}) {
    check_damaged(at, ErrorCode::kCorrupt, "control segment: its header fails its check");
  }
  check_damaged(515, ErrorCode::kProtocol, "encoded layout: it does not start with");
  CHECK(ReopenOf(*buffer).ok());
}

}  // namespace
}  // namespace lockstep::run

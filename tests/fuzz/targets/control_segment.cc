// The control segment and the slots that an agent finds again after it was killed (trainer_agent/run).
#include "trainer_agent/run/control_segment.h"

#include <unistd.h>

#include <algorithm>

#include "common/model/safetensors.h"
#include "common/wire/rank_messages.h"
#include "kernels/hash.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"
#include "trainer_agent/run/double_buffer.h"

namespace lockstep::fuzz {
namespace {

using run::ControlHeader;
using run::ControlSegment;
using run::SlotRecord;

constexpr size_t kRecordsAt = 256;
constexpr size_t kLayoutAt = 512;
constexpr uint64_t kMostImageBytes = 1 << 20;  // of a slot that is made for an input

// The check of a slot's manifest put right, if its hashes lie inside.
void SealSlot(const ControlHeader& header, size_t slot, Bytes& bytes) {
  const uint64_t table_bytes = uint64_t{header.block_count} * sizeof(uint64_t);
  const uint64_t hashes_at = kLayoutAt + (header.layout_bytes + 7) / 8 * 8 + slot * table_bytes;
  if (header.layout_bytes > bytes.size() || hashes_at + table_bytes > bytes.size()) return;
  SlotRecord record;
  std::byte* const at = bytes.data() + kRecordsAt + slot * sizeof record;
  std::memcpy(&record, at, sizeof record);
  if (record.manifest_check == 0) return;
  Bytes image;
  Append(image, record.state >> 8);
  Append(image, record.digest);
  AppendBytes(image, ByteView(bytes).subspan(hashes_at, table_bytes));
  record.manifest_check = std::max<uint64_t>(Hash64(image), 1);
  std::memcpy(at, &record, sizeof record);
}

Bytes Sealed(ByteView input) {
  Bytes bytes = Copy(input);
  if (bytes.size() < kLayoutAt) return bytes;
  ControlHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (size_t slot = 0; slot < run::kSlots; ++slot) SealSlot(header, slot, bytes);
  if (header.layout_bytes <= bytes.size() - kLayoutAt) {
    header.layout = {Hash128(ByteView(bytes).subspan(kLayoutAt, header.layout_bytes))};
  }
  header.check = Hash64(&header, offsetof(ControlHeader, check));
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

os::MappedSegment SegmentOf(ByteView bytes) {
  os::MappedSegment segment = *os::CreateMemfdSegment("fuzz", bytes.size());
  std::memcpy(segment.data(), bytes.data(), bytes.size());
  return segment;
}

void CheckSlots(const ControlSegment& control) {
  for (size_t slot = 0; slot < run::kSlots; ++slot) {
    LS_FUZZ_RULE(control.version(slot) <= kMaxVersion);
    LS_FUZZ_RULE(control.state(slot) != run::SlotState::kEmpty || control.version(slot) == 0);
    const auto manifest = control.RecordedManifest(slot);
    if (!manifest) continue;
    LS_FUZZ_RULE(manifest->block_hashes.size() == control.layout()->block_count());
    LS_FUZZ_RULE(manifest->held == (VersionRef{control.header().run, control.version(slot)}));
  }
}

// An agent that goes on with it.
void CheckReopening(ByteView bytes) {
  const auto open = [&](const std::string& name, uint64_t image_bytes) -> Result<os::MappedSegment> {
    if (image_bytes > kMostImageBytes) return Status(ErrorCode::kResourceExhausted, "too large a slot for this test");
    LS_ASSIGN_OR_RETURN(os::MappedSegment slot, os::CreateMemfdSegment(name, image_bytes));
    ControlHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto layout = *model::ModelLayout::Decode(bytes.subspan(kLayoutAt, header.layout_bytes));
    const Bytes head = model::SafetensorsHeader(*layout);
    std::memcpy(slot.data(), head.data(), head.size());
    return slot;
  };
  const auto reopened = run::DoubleBuffer::Reopen(SegmentOf(bytes), open);
  if (!reopened.ok()) return CheckRefusal(reopened.status(), {ErrorCode::kResourceExhausted});
  run::DoubleBuffer& buffer = **reopened;
  const auto newest = buffer.NewestCommitted();
  if (!newest) return;
  const uint64_t data_bytes = buffer.layout()->data_bytes();
  const auto all_zero = [&](ByteView data) {
    LS_FUZZ_RULE(data.size() == data_bytes && data.front() == std::byte{0} && data.back() == std::byte{0});
  };
  LS_FUZZ_RULE(buffer.UseBytes(buffer.control().version(*newest), {0, data_bytes}, all_zero).ok());
}

void TestBytes(const Bytes& bytes, ByteView input) {
  const auto opened = ControlSegment::Open(SegmentOf(bytes));
  if (!opened.ok()) {
    return CheckRefusal(opened.status(), {ErrorCode::kProtocol, ErrorCode::kCorrupt, ErrorCode::kBadData});
  }
  LS_FUZZ_RULE(model::CheckModelName(opened->model()).ok());
  LS_FUZZ_RULE(opened->header().ranks >= 1 && opened->header().ranks <= wire::kMaxRanks);
  LS_FUZZ_RULE(ControlSegment::BytesFor(*opened->layout()) == bytes.size());
  CheckSlots(*opened);
  CheckReopening(bytes);
  const auto manifest = opened->RecordedManifest(1);
  Accepted(input, {manifest && manifest->held.version > 1'000'000, opened->header().ranks > 50});
}

}  // namespace

std::vector<Bytes> Seeds() {
  const uint64_t bytes = ControlSegment::BytesFor(*SmallLayout());
  os::MappedSegment segment = *os::CreateMemfdSegment("fuzz", bytes);
  const auto written = *os::AdoptSegment(os::UniqueFd(::dup(segment.fd())), bytes, os::Access::kReadOnly, "fuzz");
  auto control = ControlSegment::Format(std::move(segment), "actor", SmallRun(), *SmallLayout(), 2);
  for (const size_t slot : {0, 1}) {
    control.SetCommitted(slot, slot + 1, 1'000'000'000);
    control.RecordManifest(slot, SmallManifest(slot + 1));
  }
  return {HexBlock("trainer_agent/run/FORMAT.md", "control"), Copy({written.data(), bytes})};
}

void TestInput(ByteView input) {
  if (input.empty() || NamesManyBlocks(input)) return;
  TestBytes(Copy(input), input);
  TestBytes(Sealed(input), input);
}

}  // namespace lockstep::fuzz

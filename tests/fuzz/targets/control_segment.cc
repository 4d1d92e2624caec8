// The control segment and the halves that an agent finds again after it was killed (trainer_agent/buffer).
#include "trainer_agent/buffer/control_segment.h"

#include <unistd.h>

#include <algorithm>

#include "common/base/hash.h"
#include "common/model/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"
#include "trainer_agent/buffer/double_buffer.h"
#include "trainer_agent/buffer/rank_messages.h"

namespace lockstep::fuzz {
namespace {

using buffer::ControlHeader;
using buffer::ControlSegment;
using buffer::HalfRecord;

constexpr size_t kRecordsAt = 256;
constexpr size_t kLayoutAt = 512;
constexpr uint64_t kMostImageBytes = 1 << 20;  // of a half that is made for an input

// The check of a half's manifest put right, if its hashes lie inside.
void SealHalf(const ControlHeader& header, size_t half, Bytes& bytes) {
  const uint64_t table_bytes = uint64_t{header.block_count} * sizeof(uint64_t);
  const uint64_t hashes_at = kLayoutAt + (header.layout_bytes + 7) / 8 * 8 + half * table_bytes;
  if (header.layout_bytes > bytes.size() || hashes_at + table_bytes > bytes.size()) return;
  HalfRecord record;
  std::byte* const at = bytes.data() + kRecordsAt + half * sizeof record;
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
  for (size_t half = 0; half < buffer::kHalves; ++half) SealHalf(header, half, bytes);
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

void CheckHalves(const ControlSegment& control) {
  for (size_t half = 0; half < buffer::kHalves; ++half) {
    LS_FUZZ_RULE(control.version(half) <= kMaxVersion);
    LS_FUZZ_RULE(control.state(half) != buffer::HalfState::kEmpty || control.version(half) == 0);
    const auto manifest = control.RecordedManifest(half);
    if (!manifest) continue;
    LS_FUZZ_RULE(manifest->block_hashes.size() == control.layout()->block_count());
    LS_FUZZ_RULE(manifest->held == (Held{control.header().run, control.version(half)}));
  }
}

// An agent that goes on with it.
void CheckReopening(ByteView bytes) {
  const auto open = [&](const std::string& name, uint64_t image_bytes) -> Result<os::MappedSegment> {
    if (image_bytes > kMostImageBytes) return Status(ErrorCode::kResourceExhausted, "too large a half for this test");
    LS_ASSIGN_OR_RETURN(os::MappedSegment half, os::CreateMemfdSegment(name, image_bytes));
    ControlHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto layout = *model::ModelLayout::Decode(bytes.subspan(kLayoutAt, header.layout_bytes));
    const Bytes head = model::SafetensorsHeader(*layout);
    std::memcpy(half.data(), head.data(), head.size());
    return half;
  };
  const auto reopened = buffer::DoubleBuffer::Reopen(SegmentOf(bytes), open);
  if (!reopened.ok()) return CheckRefusal(reopened.status(), {ErrorCode::kResourceExhausted});
  buffer::DoubleBuffer& buffer = **reopened;
  const auto newest = buffer.NewestCommitted();
  if (!newest) return;
  const uint64_t data_bytes = buffer.layout()->data_bytes();
  const auto all_zero = [&](ByteView data) {
    LS_FUZZ_RULE(data.size() == data_bytes && data.front() == std::byte{0} && data.back() == std::byte{0});
  };
  LS_FUZZ_RULE(buffer.UseBytes(buffer.version(*newest), {0, data_bytes}, all_zero).ok());
}

void TestBytes(const Bytes& bytes, ByteView input) {
  const auto opened = ControlSegment::Open(SegmentOf(bytes));
  if (!opened.ok()) {
    return CheckRefusal(opened.status(), {ErrorCode::kProtocol, ErrorCode::kCorrupt, ErrorCode::kBadData});
  }
  LS_FUZZ_RULE(model::CheckModelName(opened->model()).ok());
  LS_FUZZ_RULE(opened->header().ranks >= 1 && opened->header().ranks <= buffer::kMaxRanks);
  LS_FUZZ_RULE(ControlSegment::BytesFor(*opened->layout()) == bytes.size());
  CheckHalves(*opened);
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
  for (const size_t half : {0, 1}) {
    control.SetCommitted(half, half + 1, 1'000'000'000);
    control.RecordManifest(half, SmallManifest(half + 1));
  }
  return {HexBlock("trainer_agent/buffer/FORMAT.md", "control"), Copy({written.data(), bytes})};
}

void TestInput(ByteView input) {
  if (input.empty() || NamesManyBlocks(input)) return;
  TestBytes(Copy(input), input);
  TestBytes(Sealed(input), input);
}

}  // namespace lockstep::fuzz

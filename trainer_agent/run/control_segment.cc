#include "trainer_agent/run/control_segment.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "common/base/text.h"
#include "common/model/safetensors.h"
#include "common/wire/rank_messages.h"
#include "kernels/hash.h"

namespace lockstep::run {
namespace {

constexpr char kMagic[8] = {'L', 'S', 'C', 'T', 'R', 'L', '0', '1'};
constexpr size_t kRecordsAt = 256;
constexpr size_t kLabelsAt = kRecordsAt + kSlots * sizeof(SlotRecord);
constexpr size_t kLayoutAt = 512;
static_assert(kLabelsAt + kSlots * sizeof(SlotLabel) == kLayoutAt);

uint64_t HashesAt(uint64_t layout_bytes) {
  return kLayoutAt + (layout_bytes + 7) / 8 * 8;
}

uint64_t TotalBytes(uint64_t layout_bytes, uint64_t block_count) {
  return HashesAt(layout_bytes) + kSlots * block_count * sizeof(uint64_t);
}

uint64_t HeaderCheck(const ControlHeader& header) {
  return Hash64(&header, offsetof(ControlHeader, check));
}

uint64_t ManifestCheck(const model::Manifest& manifest) {
  Bytes image;
  Append(image, manifest.held.version);
  Append(image, manifest.digest);
  AppendBytes(image, std::as_bytes(std::span(manifest.block_hashes)));
  return std::max<uint64_t>(Hash64(image), 1);  // 0 means none
}

Status CheckHeader(const ControlHeader& header, uint64_t segment_bytes) {
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    return {ErrorCode::kProtocol, "control segment: it does not start with \"LSCTRL01\""};
  }
  if (header.format != kSegmentFormat) {
    return {ErrorCode::kProtocol,
            Cat("control segment: format ", header.format, " is not known here (known: ", kSegmentFormat, ")")};
  }
  if (header.header_bytes != sizeof header) {
    return {ErrorCode::kProtocol,
            Cat("control segment: its header has ", header.header_bytes, " bytes, not ", sizeof header)};
  }
  if (HeaderCheck(header) != header.check) return {ErrorCode::kCorrupt, "control segment: its header fails its check"};
  if (header.ranks == 0 || header.ranks > wire::kMaxRanks) {
    return {ErrorCode::kCorrupt, Cat("control segment: it names ", header.ranks, " ranks")};
  }
  if (header.layout_bytes > segment_bytes || TotalBytes(header.layout_bytes, header.block_count) != segment_bytes) {
    return {ErrorCode::kCorrupt, Cat("control segment: ", segment_bytes, " bytes do not hold what its header names")};
  }
  return model::CheckModelName(std::string_view(header.model, strnlen(header.model, sizeof header.model)));
}

}  // namespace

uint64_t ControlSegment::BytesFor(const model::ModelLayout& layout) {
  return TotalBytes(layout.encoded().size(), layout.block_count());
}

ControlSegment ControlSegment::Format(os::MappedSegment segment, const std::string& model, const RunId& run,
                                      const model::ModelLayout& layout, uint32_t ranks) {
  ControlHeader header{};
  header.format = kSegmentFormat;
  header.header_bytes = sizeof header;
  header.block_count = layout.block_count();
  header.run = run;
  header.layout = layout.digest();
  header.layout_bytes = layout.encoded().size();
  header.image_bytes = model::ImageBytes(layout);
  header.data_offset = header.image_bytes - layout.data_bytes();
  header.ranks = ranks;
  std::memcpy(header.model, model.data(), std::min(model.size(), sizeof header.model));
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.check = HeaderCheck(header);
  std::memcpy(segment.data() + kLayoutAt, layout.encoded().data(), layout.encoded().size());
  std::memset(segment.data() + kRecordsAt, 0, kLayoutAt - kRecordsAt);
  // The magic comes last, in one store: a segment that has it is complete.
  uint64_t magic = 0;
  std::memcpy(&magic, header.magic, sizeof magic);
  std::memset(segment.data(), 0, sizeof magic);
  std::memcpy(segment.data() + sizeof magic, header.magic + sizeof magic, sizeof header - sizeof magic);
  std::atomic_ref(*reinterpret_cast<uint64_t*>(segment.data())).store(magic, std::memory_order_release);
  auto shared = *model::ModelLayout::Decode(layout.encoded());
  return ControlSegment(std::move(segment), header, std::move(shared));
}

Result<ControlSegment> ControlSegment::Open(os::MappedSegment segment) {
  if (segment.bytes() < kLayoutAt) return Status(ErrorCode::kCorrupt, "control segment: too short");
  ControlHeader header;
  std::memcpy(&header, segment.data(), sizeof header);
  LS_RETURN_IF_ERROR(CheckHeader(header, segment.bytes()));
  const Bytes encoded(segment.data() + kLayoutAt, segment.data() + kLayoutAt + header.layout_bytes);
  LS_ASSIGN_OR_RETURN(auto layout, model::ModelLayout::Decode(encoded));
  if (layout->digest() != header.layout || layout->block_count() != header.block_count ||
      model::ImageBytes(*layout) != header.image_bytes ||
      header.image_bytes - layout->data_bytes() != header.data_offset) {
    return Status(ErrorCode::kCorrupt, "control segment: its header and its layout disagree");
  }
  return ControlSegment(std::move(segment), header, std::move(layout));
}

std::string ControlSegment::model() const {
  return std::string(header().model, strnlen(header().model, sizeof header().model));
}

SlotRecord& ControlSegment::record(size_t slot) const {
  return reinterpret_cast<SlotRecord*>(segment_.data() + kRecordsAt)[slot];
}

SlotLabel& ControlSegment::stored_label(size_t slot) const {
  return reinterpret_cast<SlotLabel*>(segment_.data() + kLabelsAt)[slot];
}

uint64_t* ControlSegment::hashes(size_t slot) const {
  auto* tables = reinterpret_cast<uint64_t*>(segment_.data() + HashesAt(header().layout_bytes));
  return tables + slot * header().block_count;
}

ControlSegment::SlotWord ControlSegment::word(size_t slot) const {
  const uint64_t word = std::atomic_ref(record(slot).state).load(std::memory_order_acquire);
  const auto state = static_cast<SlotState>(static_cast<uint8_t>(word));
  if (state != SlotState::kWriting && state != SlotState::kCommitted) return {};
  return {state, word >> 8};
}

SlotState ControlSegment::state(size_t slot) const {
  return word(slot).state;
}

Version ControlSegment::version(size_t slot) const {
  return word(slot).version;
}

int64_t ControlSegment::committed_unix_ns(size_t slot) const {
  return std::atomic_ref(record(slot).committed_unix_ns).load(std::memory_order_relaxed);
}

std::string ControlSegment::label(size_t slot) const {
  if (std::atomic_ref(record(slot).labelled).load(std::memory_order_relaxed) != version(slot)) return {};
  const SlotLabel stored = stored_label(slot);
  std::string label(stored.text, strnlen(stored.text, sizeof stored.text));
  return model::CheckLabel(label).ok() ? label : "";
}

void ControlSegment::StoreState(size_t slot, Version version, SlotState state) {
  std::atomic_ref(record(slot).state).store(version << 8 | static_cast<uint8_t>(state), std::memory_order_release);
}

void ControlSegment::Reset(size_t slot, Version version, SlotState state) {
  std::atomic_ref(record(slot).manifest_check).store(0, std::memory_order_release);
  StoreState(slot, version, state);
}

Version ControlSegment::newest_dropped() const {
  Version newest = 0;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    const Version dropped = std::atomic_ref(record(slot).dropped).load(std::memory_order_relaxed);
    if (dropped <= kMaxVersion) newest = std::max(newest, dropped);
  }
  return newest;
}

void ControlSegment::SetEmpty(size_t slot) {
  const SlotWord was = word(slot);
  if (was.state == SlotState::kCommitted && was.version > newest_dropped()) {
    std::atomic_ref(record(slot).dropped).store(was.version, std::memory_order_relaxed);
  }
  Reset(slot, 0, SlotState::kEmpty);
}

void ControlSegment::SetCommitted(size_t slot, Version version, int64_t committed_unix_ns, std::string_view label) {
  SlotLabel stored{};
  label.copy(stored.text, sizeof stored.text);
  stored_label(slot) = stored;
  std::atomic_ref(record(slot).labelled).store(label.empty() ? 0 : version, std::memory_order_relaxed);
  std::atomic_ref(record(slot).committed_unix_ns).store(committed_unix_ns, std::memory_order_relaxed);
  StoreState(slot, version, SlotState::kCommitted);
}

void ControlSegment::RecordManifest(size_t slot, const model::Manifest& manifest) {
  std::atomic_ref(record(slot).manifest_check).store(0, std::memory_order_release);
  std::memcpy(hashes(slot), manifest.block_hashes.data(), manifest.block_hashes.size() * sizeof(uint64_t));
  record(slot).digest = manifest.digest;
  std::atomic_ref(record(slot).manifest_check).store(ManifestCheck(manifest), std::memory_order_release);
}

std::optional<model::Manifest> ControlSegment::RecordedManifest(size_t slot) const {
  const uint64_t check = std::atomic_ref(record(slot).manifest_check).load(std::memory_order_acquire);
  model::Manifest manifest{.held = {header().run, version(slot)},
                           .block_hashes = {hashes(slot), hashes(slot) + header().block_count},
                           .digest = record(slot).digest};
  if (check == 0 || check != ManifestCheck(manifest)) return std::nullopt;
  return manifest;
}

}  // namespace lockstep::run

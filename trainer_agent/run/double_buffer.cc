#include "trainer_agent/run/double_buffer.h"

#include <cstring>

#include "common/base/text.h"
#include "common/model/safetensors.h"
#include "common/os/file.h"

namespace lockstep::run {
namespace {

const char* const kSlotNames[kSlots] = {"slot-0", "slot-1"};

}  // namespace

DoubleBuffer::DoubleBuffer(ControlSegment control, std::array<os::MappedSegment, kSlots> slots)
    : model_(control.model()), control_(std::move(control)), slots_(std::move(slots)) {}

Result<std::unique_ptr<DoubleBuffer>> DoubleBuffer::Create(const std::string& model, const RunId& run,
                                                           const model::ModelLayout& layout, uint32_t ranks,
                                                           const SegmentSource& make) {
  LS_RETURN_IF_ERROR(model::CheckModelName(model));
  const Bytes header = model::SafetensorsHeader(layout);
  if (header.size() > model::kMaxSafetensorsHeader) {
    return Status(ErrorCode::kBadData,
                  Cat("model ", model, ": its safetensors header takes ", HumanBytes(header.size()),
                      "; readers stop at ", HumanBytes(model::kMaxSafetensorsHeader)));
  }
  std::array<os::MappedSegment, kSlots> slots;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    LS_ASSIGN_OR_RETURN(slots[slot], make(kSlotNames[slot], header.size() + layout.data_bytes()));
    std::memcpy(slots[slot].data(), header.data(), header.size());
  }
  LS_ASSIGN_OR_RETURN(os::MappedSegment control, make("control", ControlSegment::BytesFor(layout)));
  return std::unique_ptr<DoubleBuffer>(
      new DoubleBuffer(ControlSegment::Format(std::move(control), model, run, layout, ranks), std::move(slots)));
}

Result<std::unique_ptr<DoubleBuffer>> DoubleBuffer::Reopen(os::MappedSegment segment, const SegmentSource& open) {
  LS_ASSIGN_OR_RETURN(ControlSegment control, ControlSegment::Open(std::move(segment)));
  const Bytes header = model::SafetensorsHeader(*control.layout());
  std::array<os::MappedSegment, kSlots> slots;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    LS_ASSIGN_OR_RETURN(slots[slot], open(kSlotNames[slot], control.header().image_bytes));
    if (std::memcmp(slots[slot].data(), header.data(), header.size()) != 0) {
      return Status(ErrorCode::kCorrupt, Cat(kSlotNames[slot], " of model ", control.model(),
                                             ": its safetensors header is not the layout's"));
    }
  }
  return std::unique_ptr<DoubleBuffer>(new DoubleBuffer(std::move(control), std::move(slots)));
}

std::optional<size_t> DoubleBuffer::NewestCommitted() const {
  MutexLock lock(mutex_);
  std::optional<size_t> newest;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (control_.state(slot) != SlotState::kCommitted) continue;
    if (!newest || control_.version(slot) > control_.version(*newest)) newest = slot;
  }
  return newest;
}

size_t DoubleBuffer::WriteSlot() const {
  return NewestCommitted() == std::optional<size_t>(0) ? 1 : 0;
}

size_t DoubleBuffer::BeginWrite(Version version) {
  const size_t slot = WriteSlot();
  MutexLock lock(mutex_);
  control_.SetWriting(slot, version);
  readers_gone_.wait(lock, [&]() LS_REQUIRES(mutex_) { return readers_[slot] == 0; });
  return slot;
}

void DoubleBuffer::Commit(size_t slot, int64_t committed_unix_ns, std::string_view label) {
  MutexLock lock(mutex_);
  control_.SetCommitted(slot, control_.version(slot), committed_unix_ns, label);
}

void DoubleBuffer::Drop(size_t slot) {
  MutexLock lock(mutex_);
  control_.SetEmpty(slot);
}

void DoubleBuffer::RecordManifest(size_t slot, const model::Manifest& manifest) {
  MutexLock lock(mutex_);
  control_.RecordManifest(slot, manifest);
}

std::optional<size_t> DoubleBuffer::AcquireRead(Version version) {
  MutexLock lock(mutex_);
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (control_.state(slot) != SlotState::kCommitted || control_.version(slot) != version) continue;
    ++readers_[slot];
    return slot;
  }
  return std::nullopt;
}

void DoubleBuffer::ReleaseRead(size_t slot) {
  MutexLock lock(mutex_);
  if (--readers_[slot] == 0) readers_gone_.notify_all();
}

Status DoubleBuffer::Gone(Version version) const {
  return {ErrorCode::kState, Cat("model ", model_, ": version ", version, " is no longer in memory")};
}

Status DoubleBuffer::UseBytes(Version version, const ByteRange& range, const std::function<void(ByteView)>& use) {
  const std::optional<size_t> slot = AcquireRead(version);
  if (!slot) return Gone(version);
  // Whatever `use` throws: a trainer would wait for ever.
  struct Lease {
    DoubleBuffer& buffer;
    const size_t slot;
    ~Lease() { buffer.ReleaseRead(slot); }
  } const lease{*this, *slot};
  use({data(*slot) + range.offset, range.bytes});
  return OkStatus();
}

Result<VersionFile> DoubleBuffer::OpenFile(Version version) {
  const std::optional<size_t> slot = AcquireRead(version);
  if (!slot) return Gone(version);
  Result<os::UniqueFd> opened = os::ReopenReadOnly(slots_[*slot].fd(), Cat("slot ", *slot, " of model ", model_));
  ReleaseRead(*slot);
  LS_RETURN_IF_ERROR(opened.status());
  return VersionFile{*std::move(opened), data_offset()};
}

}  // namespace lockstep::run

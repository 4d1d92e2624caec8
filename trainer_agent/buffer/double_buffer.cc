#include "trainer_agent/buffer/double_buffer.h"

#include <cstring>

#include "common/base/text.h"
#include "common/model/safetensors.h"
#include "common/os/file.h"

namespace lockstep::buffer {
namespace {

const char* const kHalfNames[kHalves] = {"half-0", "half-1"};

}  // namespace

DoubleBuffer::DoubleBuffer(ControlSegment control, std::array<os::MappedSegment, kHalves> halves)
    : model_(control.model()), control_(std::move(control)), halves_(std::move(halves)) {}

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
  std::array<os::MappedSegment, kHalves> halves;
  for (size_t half = 0; half < kHalves; ++half) {
    LS_ASSIGN_OR_RETURN(halves[half], make(kHalfNames[half], header.size() + layout.data_bytes()));
    std::memcpy(halves[half].data(), header.data(), header.size());
  }
  LS_ASSIGN_OR_RETURN(os::MappedSegment control, make("control", ControlSegment::BytesFor(layout)));
  return std::unique_ptr<DoubleBuffer>(
      new DoubleBuffer(ControlSegment::Format(std::move(control), model, run, layout, ranks), std::move(halves)));
}

Result<std::unique_ptr<DoubleBuffer>> DoubleBuffer::Reopen(os::MappedSegment segment, const SegmentSource& open) {
  LS_ASSIGN_OR_RETURN(ControlSegment control, ControlSegment::Open(std::move(segment)));
  const Bytes header = model::SafetensorsHeader(*control.layout());
  std::array<os::MappedSegment, kHalves> halves;
  for (size_t half = 0; half < kHalves; ++half) {
    LS_ASSIGN_OR_RETURN(halves[half], open(kHalfNames[half], control.header().image_bytes));
    if (std::memcmp(halves[half].data(), header.data(), header.size()) != 0) {
      return Status(ErrorCode::kCorrupt, Cat(kHalfNames[half], " of model ", control.model(),
                                             ": its safetensors header is not the layout's"));
    }
  }
  return std::unique_ptr<DoubleBuffer>(new DoubleBuffer(std::move(control), std::move(halves)));
}

std::optional<size_t> DoubleBuffer::NewestCommitted() const {
  std::lock_guard lock(mutex_);
  std::optional<size_t> newest;
  for (size_t half = 0; half < kHalves; ++half) {
    if (control_.state(half) != HalfState::kCommitted) continue;
    if (!newest || control_.version(half) > control_.version(*newest)) newest = half;
  }
  return newest;
}

size_t DoubleBuffer::WriteHalf() const {
  return NewestCommitted() == std::optional<size_t>(0) ? 1 : 0;
}

HalfState DoubleBuffer::state(size_t half) const {
  std::lock_guard lock(mutex_);
  return control_.state(half);
}

Version DoubleBuffer::version(size_t half) const {
  std::lock_guard lock(mutex_);
  return control_.version(half);
}

int64_t DoubleBuffer::committed_unix_ns(size_t half) const {
  std::lock_guard lock(mutex_);
  return control_.committed_unix_ns(half);
}

std::string DoubleBuffer::label(size_t half) const {
  std::lock_guard lock(mutex_);
  return control_.label(half);
}

Version DoubleBuffer::newest_dropped() const {
  std::lock_guard lock(mutex_);
  return control_.newest_dropped();
}

size_t DoubleBuffer::BeginWrite(Version version) {
  const size_t half = WriteHalf();
  std::unique_lock lock(mutex_);
  control_.SetWriting(half, version);
  readers_gone_.wait(lock, [&] { return readers_[half] == 0; });
  return half;
}

void DoubleBuffer::Commit(size_t half, int64_t committed_unix_ns, std::string_view label) {
  std::lock_guard lock(mutex_);
  control_.SetCommitted(half, control_.version(half), committed_unix_ns, label);
}

void DoubleBuffer::Drop(size_t half) {
  std::lock_guard lock(mutex_);
  control_.SetEmpty(half);
}

void DoubleBuffer::RecordManifest(size_t half, const model::Manifest& manifest) {
  std::lock_guard lock(mutex_);
  control_.RecordManifest(half, manifest);
}

std::optional<model::Manifest> DoubleBuffer::RecordedManifest(size_t half) const {
  std::lock_guard lock(mutex_);
  return control_.RecordedManifest(half);
}

std::optional<size_t> DoubleBuffer::AcquireRead(Version version) {
  std::lock_guard lock(mutex_);
  for (size_t half = 0; half < kHalves; ++half) {
    if (control_.state(half) != HalfState::kCommitted || control_.version(half) != version) continue;
    ++readers_[half];
    return half;
  }
  return std::nullopt;
}

void DoubleBuffer::ReleaseRead(size_t half) {
  std::lock_guard lock(mutex_);
  if (--readers_[half] == 0) readers_gone_.notify_all();
}

Status DoubleBuffer::Gone(Version version) const {
  return {ErrorCode::kState, Cat("model ", model_, ": version ", version, " is no longer in memory")};
}

Status DoubleBuffer::UseBytes(Version version, const ByteRange& range, const std::function<void(ByteView)>& use) {
  const std::optional<size_t> half = AcquireRead(version);
  if (!half) return Gone(version);
  // Whatever `use` throws: a trainer would wait for ever.
  struct Lease {
    DoubleBuffer& buffer;
    const size_t half;
    ~Lease() { buffer.ReleaseRead(half); }
  } const lease{*this, *half};
  use({data(*half) + range.offset, range.bytes});
  return OkStatus();
}

Result<os::UniqueFd> DoubleBuffer::OpenHalf(Version version) {
  const std::optional<size_t> half = AcquireRead(version);
  if (!half) return Gone(version);
  Result<os::UniqueFd> opened = os::ReopenReadOnly(halves_[*half].fd(), Cat("half ", *half, " of model ", model_));
  ReleaseRead(*half);
  return opened;
}

}  // namespace lockstep::buffer

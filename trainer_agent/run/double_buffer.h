// The double buffer: two slots of shared memory, each a whole safetensors image of the model, and which process may
// touch them.
//
//   EMPTY ──BeginWrite(v)──> WRITING(v) ──Commit──> COMMITTED(v) ──BeginWrite(v+2)──> WRITING(v+2)
//     ^                          │
//     └───────── Drop ───────────┘
//
// A version is always written into the slot that does not hold the newest committed one. Readers take short leases, a
// block's copy long; BeginWrite refuses new ones and waits for those, so no receiver can hold the trainer up.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/os/unique_fd.h"
#include "trainer_agent/run/control_segment.h"

namespace lockstep::run {

// A version's blocks as a file. The caller owns the descriptor. A trainer may write over the blocks at any time.
struct VersionFile {
  os::UniqueFd file;
  uint64_t data_offset = 0;  // of the first block
};

class DoubleBuffer {
 public:
  // Where segments come from: (name, bytes) -> segment.
  using SegmentSource = std::function<Result<os::MappedSegment>(const std::string& name, uint64_t bytes)>;

  static Result<std::unique_ptr<DoubleBuffer>> Create(const std::string& model, const RunId& run,
                                                      const model::ModelLayout& layout, uint32_t ranks,
                                                      const SegmentSource& make);
  // From the three segments of an earlier agent, control first. Checks sizes and formats; the bytes of committed slots
  // are the caller's to verify. A slot left WRITING stays so.
  static Result<std::unique_ptr<DoubleBuffer>> Reopen(os::MappedSegment control, const SegmentSource& open);

  const std::string& model() const { return model_; }
  const RunId& run() const { return control_.header().run; }
  uint32_t ranks() const { return control_.header().ranks; }
  const std::shared_ptr<const model::ModelLayout>& layout() const { return control_.layout(); }
  uint64_t image_bytes() const { return control_.header().image_bytes; }
  uint64_t data_offset() const { return control_.header().data_offset; }
  // Control, slot 0, slot 1: what a rank maps. They stay ours.
  std::array<int, 3> fds() const { return {control_.fd(), slots_[0].fd(), slots_[1].fd()}; }

  // The data section of a slot; the state machine decides which process may read or write it when.
  std::byte* data(size_t slot) const { return slots_[slot].data() + data_offset(); }

  std::optional<size_t> NewestCommitted() const;  // the slot; no value when neither holds a version
  size_t WriteSlot() const;                       // the slot that the next version goes to
  // What each slot has. Any thread may ask for a slot's state, version and time of commit; the thread that writes may
  // ask for the rest.
  const ControlSegment& control() const { return control_; }

  // Opens WriteSlot() for writing `version` and returns it. Waits for readers of what it held.
  size_t BeginWrite(Version version);
  // REQUIRES WRITING and CheckLabel(label).
  void Commit(size_t slot, int64_t committed_unix_ns, std::string_view label = {});
  void Drop(size_t slot);  // makes the slot EMPTY: its version was aborted, or proved wrong

  void RecordManifest(size_t slot, const model::Manifest& manifest);

  // Calls `use` with the bytes of `range` of the data section. The bytes do not change while `use` runs. A trainer may
  // wait for `use`: it must wait for nothing, and return as soon as a few blocks could be copied. kState when `version`
  // is no longer in memory; `use` is not called then.
  Status UseBytes(Version version, const ByteRange& range, const std::function<void(ByteView)>& use);
  // Opens the memory that has `version` now. No trainer waits for the caller: the memory may be written over as soon as
  // this call returns. kState when `version` is no longer in memory.
  Result<VersionFile> OpenFile(Version version);

 private:
  DoubleBuffer(ControlSegment control, std::array<os::MappedSegment, kSlots> slots);
  std::optional<size_t> AcquireRead(Version version);
  void ReleaseRead(size_t slot);
  Status Gone(Version version) const;

  const std::string model_;
  mutable Mutex mutex_;
  std::condition_variable readers_gone_;
  ControlSegment control_;
  std::array<os::MappedSegment, kSlots> slots_;
  std::array<int, kSlots> readers_ LS_GUARDED_BY(mutex_){};
};

}  // namespace lockstep::run

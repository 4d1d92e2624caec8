// The double buffer: two halves of shared memory, each a whole safetensors image of the model, and who may touch them.
//
//   EMPTY ──BeginWrite(v)──> WRITING(v) ──Commit──> COMMITTED(v) ──BeginWrite(v+2)──> WRITING(v+2)
//     ^                          │
//     └───────── Drop ───────────┘
//
// A version is always written into the half that does not hold the newest committed one. Readers take short leases, a
// block's copy long; BeginWrite refuses new ones and waits for those, so no receiver can hold the trainer up.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/os/unique_fd.h"
#include "trainer_agent/buffer/control_segment.h"

namespace lockstep::buffer {

class DoubleBuffer {
 public:
  // Where segments come from: (name, bytes) -> segment.
  using SegmentSource = std::function<Result<os::MappedSegment>(const std::string& name, uint64_t bytes)>;

  static Result<std::unique_ptr<DoubleBuffer>> Create(const std::string& model, const RunId& run,
                                                      const model::ModelLayout& layout, uint32_t ranks,
                                                      const SegmentSource& make);
  // From the three segments of an earlier agent, control first. Checks sizes and formats; the bytes of committed halves
  // are the caller's to verify. A half left WRITING stays so.
  static Result<std::unique_ptr<DoubleBuffer>> Reopen(os::MappedSegment control, const SegmentSource& open);

  const std::string& model() const { return model_; }
  const RunId& run() const { return control_.header().run; }
  uint32_t ranks() const { return control_.header().ranks; }
  const std::shared_ptr<const model::ModelLayout>& layout() const { return control_.layout(); }
  uint64_t image_bytes() const { return control_.header().image_bytes; }
  uint64_t data_offset() const { return control_.header().data_offset; }
  // Control, half 0, half 1: what a rank maps. They stay ours.
  std::array<int, 3> fds() const { return {control_.fd(), halves_[0].fd(), halves_[1].fd()}; }

  // The data section of a half; the state machine decides who may read or write it when.
  std::byte* data(size_t half) const { return halves_[half].data() + data_offset(); }

  std::optional<size_t> NewestCommitted() const;  // the half; no value when neither holds a version
  size_t WriteHalf() const;                       // the half that the next version goes to
  HalfState state(size_t half) const;
  Version version(size_t half) const;
  int64_t committed_unix_ns(size_t half) const;
  std::string label(size_t half) const;  // of its version; empty: none. REQUIRES COMMITTED
  // The newest version that was dropped after it was committed, by whatever agent; 0: none was.
  Version newest_dropped() const;

  // Opens WriteHalf() for writing `version` and returns it. Waits for readers of what it held.
  size_t BeginWrite(Version version);
  // REQUIRES WRITING and CheckLabel(label).
  void Commit(size_t half, int64_t committed_unix_ns, std::string_view label = {});
  void Drop(size_t half);  // was aborted, or proved wrong: EMPTY

  void RecordManifest(size_t half, const model::Manifest& manifest);
  std::optional<model::Manifest> RecordedManifest(size_t half) const;

  // Calls `use` with those bytes of the data section at exactly `version`, which stay while it runs: it must be done
  // soon and wait for nothing, for a trainer may wait for it. kState when no half holds that version any more.
  Status UseBytes(Version version, const ByteRange& range, const std::function<void(ByteView)>& use);
  // A descriptor that reads the half which holds exactly `version`, with its image from the start. It holds nothing up:
  // the half may be written into as soon as this returns. kState as above.
  Result<os::UniqueFd> OpenHalf(Version version);

 private:
  DoubleBuffer(ControlSegment control, std::array<os::MappedSegment, kHalves> halves);
  std::optional<size_t> AcquireRead(Version version);
  void ReleaseRead(size_t half);
  Status Gone(Version version) const;

  const std::string model_;
  mutable std::mutex mutex_;
  std::condition_variable readers_gone_;
  ControlSegment control_;
  std::array<os::MappedSegment, kHalves> halves_;
  std::array<int, kHalves> readers_{};
};

}  // namespace lockstep::buffer

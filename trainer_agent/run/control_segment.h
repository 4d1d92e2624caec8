// The control segment: what the agent must still know after it was killed (FORMAT.md).
//
// A small shared segment next to the two slots. It names the run and the layout and records the state of each slot.
// The agent alone writes it; a state changes by one atomic 8-byte store, so a kill between two instructions leaves a
// state that was true. Ranks hold descriptors that could write, too: what decides where something lies, the header and
// the layout, is therefore read once, and of what is read later every value is taken once and then checked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/label.h"
#include "common/model/layout.h"
#include "common/model/manifest.h"
#include "common/model/model_name.h"
#include "common/os/segment.h"

namespace lockstep::run {

inline constexpr uint16_t kSegmentFormat = 1;
inline constexpr size_t kSlots = 2;

enum class SlotState : uint8_t {
  kEmpty = 0,      // holds nothing; may be written
  kWriting = 1,    // ranks are writing its version; never served
  kCommitted = 2,  // every rank has committed: the bytes are its version, whole
};

struct ControlHeader {  // 256 bytes
  char magic[8];        // "LSCTRL01"
  uint16_t format;      // kSegmentFormat
  uint16_t header_bytes;
  uint32_t block_count;
  RunId run;
  LayoutDigest layout;
  uint64_t layout_bytes;             // of the encoded layout, which starts at byte 512
  uint64_t image_bytes;              // of each slot: safetensors header and data section
  uint64_t data_offset;              // of the data section in each slot
  uint32_t ranks;                    // that must commit a version
  uint32_t reserved;                 // 0
  char model[model::kMaxModelName];  // zero-padded
  uint8_t unused[40];                // 0
  uint64_t check;                    // xxh3-64 of the bytes before
};
static_assert(sizeof(ControlHeader) == 256);

struct SlotRecord {  // 64 bytes; two of them at byte 256, then their two labels, up to 512
  uint64_t state;    // version << 8 | SlotState, changed by one store
  int64_t committed_unix_ns;
  ManifestDigest digest;
  uint64_t manifest_check;  // xxh3-64 of version, digest and the slot's hash table; 0 when no manifest is recorded
  uint64_t dropped;         // the newest version that was committed in the slot and dropped; 0: none was
  uint64_t labelled;        // the version that the slot's label is of; 0: none
  uint8_t unused[8];        // 0
};
static_assert(sizeof(SlotRecord) == 64);

struct SlotLabel {              // 64 bytes; two of them at byte 384
  char text[model::kMaxLabel];  // of the version `labelled`, zero-padded
};
static_assert(sizeof(SlotLabel) == 64);

class ControlSegment {
 public:
  static uint64_t BytesFor(const model::ModelLayout& layout);

  // Writes a fresh segment's content. REQUIRES segment.bytes() == BytesFor(layout).
  static ControlSegment Format(os::MappedSegment segment, const std::string& model, const RunId& run,
                               const model::ModelLayout& layout, uint32_t ranks);
  // Opens a segment that an earlier agent left, or a rank returned. kProtocol: no control segment of this format.
  // kCorrupt: damaged. kBadData: the model's name or the layout breaks a rule.
  static Result<ControlSegment> Open(os::MappedSegment segment);

  // The header as it was when the segment was formatted or opened.
  const ControlHeader& header() const { return header_; }
  std::string model() const;
  const std::shared_ptr<const model::ModelLayout>& layout() const { return layout_; }
  int fd() const { return segment_.fd(); }

  SlotState state(size_t slot) const;
  Version version(size_t slot) const;  // 0 when empty
  int64_t committed_unix_ns(size_t slot) const;
  std::string label(size_t slot) const;  // empty: none. REQUIRES the slot to be committed

  // The newest version that was committed and made EMPTY: another must not take its number. 0: none was.
  Version newest_dropped() const;

  // SetEmpty and SetWriting drop the slot's manifest, then change its state.
  void SetEmpty(size_t slot);
  void SetWriting(size_t slot, Version version) { Reset(slot, version, SlotState::kWriting); }
  // REQUIRES CheckLabel(label).
  void SetCommitted(size_t slot, Version version, int64_t committed_unix_ns, std::string_view label = {});

  // REQUIRES the slot to be committed at manifest.held.version.
  void RecordManifest(size_t slot, const model::Manifest& manifest);
  // Returns the manifest that was recorded for the slot's present version; no value when none was, or when the agent
  // died while recording.
  std::optional<model::Manifest> RecordedManifest(size_t slot) const;

 private:
  struct SlotWord {
    SlotState state = SlotState::kEmpty;
    Version version = 0;
  };

  ControlSegment(os::MappedSegment segment, const ControlHeader& header,
                 std::shared_ptr<const model::ModelLayout> layout)
      : segment_(std::move(segment)), header_(header), layout_(std::move(layout)) {}

  SlotRecord& record(size_t slot) const;
  SlotLabel& stored_label(size_t slot) const;
  uint64_t* hashes(size_t slot) const;
  SlotWord word(size_t slot) const;
  void Reset(size_t slot, Version version, SlotState state);
  void StoreState(size_t slot, Version version, SlotState state);

  os::MappedSegment segment_;
  ControlHeader header_;
  std::shared_ptr<const model::ModelLayout> layout_;
};

}  // namespace lockstep::run

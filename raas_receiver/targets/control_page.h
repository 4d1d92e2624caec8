// What all ranks of an engine serve, in one word of shared memory (FORMAT.md).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/os/segment.h"

namespace lockstep::targets {

inline constexpr uint16_t kEngineRankFormat = 2;
inline constexpr uint64_t kControlPageBytes = 4096;
inline constexpr char kControlPageMagic[] = "LSENGPG1";

enum class EngineState : uint8_t { kEmpty = 0, kServing = 1, kWriting = 2 };

struct ControlSlot {  // 32 bytes
  RunId run;
  uint64_t version;
  uint64_t reserved;  // 0
};
static_assert(sizeof(ControlSlot) == 32);

struct ControlPageLayout {  // 128 bytes
  char magic[8];            // kControlPageMagic
  uint16_t format;          // kEngineRankFormat
  uint16_t header_bytes;    // sizeof(ControlPageLayout)
  uint32_t world;
  std::atomic<uint64_t> word;
  uint64_t reserved;  // 0
  ControlSlot slots[2];
  uint8_t rest[32];  // 0
};
static_assert(sizeof(ControlPageLayout) == 128);
static_assert(offsetof(ControlPageLayout, word) == 16);
static_assert(offsetof(ControlPageLayout, slots) == 32);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The parts of ControlPageLayout::word.
struct ControlWord {
  EngineState state = EngineState::kEmpty;
  uint32_t slot = 0;
  uint64_t changes = 0;

  static ControlWord Decode(uint64_t word) {
    return {static_cast<EngineState>(word & 0xff), static_cast<uint32_t>(word >> 8 & 1), word >> 16};
  }
  uint64_t Encode() const { return static_cast<uint64_t>(state) | uint64_t{slot} << 8 | changes << 16; }
};

// The receiver's side of one page. One thread writes. What it returns is its own memory of what it wrote: ranks cannot
// change it.
class ControlPage {
 public:
  // EMPTY. Whoever gets the descriptor can only map it for reading.
  static Result<ControlPage> Create(uint32_t world);

  int fd() const { return segment_.fd(); }  // for SCM_RIGHTS
  EngineState state() const { return word_.state; }
  const Held& serving() const { return serving_; }  // nothing unless SERVING

  // From here on the served memory is a mix, until one of the calls below.
  void BeginWriting();
  // The commit: all ranks serve `held`.
  void Serve(const Held& held);
  // Nothing is served any more.
  void Clear();

 private:
  explicit ControlPage(os::MappedSegment segment) : segment_(std::move(segment)) {}
  ControlPageLayout& page() const { return *reinterpret_cast<ControlPageLayout*>(segment_.data()); }
  void Store(EngineState state, uint32_t slot);

  os::MappedSegment segment_;
  ControlWord word_;
  Held serving_;
};

}  // namespace lockstep::targets

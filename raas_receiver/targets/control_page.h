// What all ranks of an engine serve, in one word of shared memory (FORMAT.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/os/segment.h"

namespace lockstep {

inline constexpr uint16_t kEngineRankFormat = 1;
inline constexpr uint64_t kControlPageBytes = 4096;

enum class EngineState : uint8_t { kEmpty = 0, kServing = 1, kWriting = 2 };

struct ControlSlot {  // 32 bytes
  RunId run;
  uint64_t version;
  uint32_t half;
  uint32_t reserved;  // 0
};
static_assert(sizeof(ControlSlot) == 32);

struct ControlPageLayout {  // 128 bytes
  char magic[8];            // "LSENGPG1"
  uint16_t format;          // kEngineRankFormat
  uint16_t header_bytes;    // sizeof(ControlPageLayout)
  uint32_t world;
  std::atomic<uint64_t> word;
  uint64_t reserved;  // 0
  ControlSlot slots[2];
  uint8_t rest[32];  // 0
};
static_assert(sizeof(ControlPageLayout) == 128);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The receiver's side of one page. One thread writes.
class ControlPage {
 public:
  static Result<ControlPage> Create(uint32_t world);

  int fd() const { return segment_.fd(); }  // for SCM_RIGHTS
  EngineState state() const;
  Held serving() const;  // of the slot that the word names; nothing while EMPTY
  uint32_t half() const;

  // From here on the served memory is a mix, until one of the calls below.
  void BeginWriting();
  // The commit: all ranks serve `held` in `half`.
  void Serve(const Held& held, uint32_t half);
  // Nothing is served any more.
  void Clear();

 private:
  explicit ControlPage(MappedSegment segment) : segment_(std::move(segment)) {}
  ControlPageLayout& page() const { return *reinterpret_cast<ControlPageLayout*>(segment_.data()); }
  void Store(EngineState state, uint32_t slot);

  MappedSegment segment_;
};

}  // namespace lockstep

// A portion: some of what a rank is to write into its own memory, or to compare with it, as it travels to the rank: a
// memfd that nobody can change any more (FORMAT.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/layout/strided_copy.h"
#include "common/os/unique_fd.h"

namespace lockstep::placement {

inline constexpr char kPortionMagic[] = "LSPORTN1";
inline constexpr uint16_t kPortionFormat = 1;
inline constexpr uint64_t kMaxPortionBytes = uint64_t{64} << 20;

struct PortionHeader {  // 64 bytes
  char magic[8] = {};   // kPortionMagic
  uint16_t format = kPortionFormat;
  uint16_t header_bytes = 64;
  uint32_t reserved = 0;
  uint64_t bytes = 0;  // of the portion
  uint32_t runs = 0;   // entries of each table
  uint32_t copies = 0;
  uint32_t zeros = 0;
  uint8_t rest[28] = {};  // 0
};
static_assert(sizeof(PortionHeader) == 64);
static_assert(offsetof(PortionHeader, bytes) == 16);
static_assert(offsetof(PortionHeader, rest) == 36);

struct PortionRun {  // 24 bytes
  uint32_t memory = 0;
  uint32_t unit = 0;
  uint64_t base = 0;
  uint64_t units = 0;
};
static_assert(sizeof(PortionRun) == 24);

struct PortionRows {  // 40 bytes
  uint32_t memory = 0;
  uint32_t reserved = 0;
  uint64_t offset = 0;
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  uint64_t pitch = 0;  // 0 where there is one row
};
static_assert(sizeof(PortionRows) == 40);

// Changed units of one memory. Unit i goes to byte base + offsets[i]; its bytes are values[i * unit, (i + 1) * unit).
struct ScatterRun {
  uint64_t base = 0;
  uint32_t unit = 2;  // bytes: 1, 2, 4 or 8
  std::span<const uint32_t> offsets;
  const std::byte* values = nullptr;
};

// Collects one portion after the other. Threads: one at a time.
class PortionBuilder {
 public:
  explicit PortionBuilder(uint64_t max_bytes = kMaxPortionBytes) : max_bytes_(max_bytes) {}

  bool empty() const { return bytes_ == sizeof(PortionHeader); }
  // The largest pieces, in bytes of values, that one portion is sure to have room for.
  uint64_t piece_bytes() const { return max_bytes_ / 4; }

  // Takes a piece for `memory`; what it points to stays until Seal. False: nothing was taken, the portion is full.
  // REQUIRES pieces of at most piece_bytes() of values.
  bool Scatter(uint32_t memory, const ScatterRun& run);
  bool Copy(uint32_t memory, const layout::StridedCopy& copy, const std::byte* source);
  bool Zero(uint32_t memory, const StridedRange& range);

  // The portion of all that was taken; the builder is empty then, also after an error: kResourceExhausted, kIo.
  Result<os::UniqueFd> Seal();

 private:
  struct Run {
    uint32_t memory;
    ScatterRun run;
  };
  struct Rows {
    PortionRows entry;
    const std::byte* source;  // null: zeros
    uint64_t source_pitch;
  };

  bool Reserve(uint64_t bytes);
  void Clear();
  Result<os::UniqueFd> Write(uint64_t bytes) const;

  uint64_t max_bytes_;
  uint64_t bytes_ = sizeof(PortionHeader);  // at most those of the portion
  std::vector<Run> runs_;
  std::vector<Rows> copies_;
  std::vector<Rows> zeros_;
};

}  // namespace lockstep::placement

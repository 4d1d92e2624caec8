// RankPlacement: where the bytes of the data section lie in the memories of one rank. One list of copies serves whole
// versions and changes: in the order of what they read, with an index over them. Used by DeltaWrites and the commit.
//
// Copies with the same rows and pitch, that read other columns of them, are one group: of a tensor cut by columns, of
// one that lies transposed. A position finds its group by bisection, its row by division, its copy by bisection.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/layout/strided_copy.h"

namespace lockstep::engine {

// From the data section into memory `memory` of the rank, as in its description.
struct MemoryCopy {
  uint32_t memory = 0;
  layout::StridedCopy copy;

  bool operator==(const MemoryCopy&) const = default;
};

// What must be zero.
struct MemoryZeros {
  uint32_t memory = 0;
  StridedRange range;

  bool operator==(const MemoryZeros&) const = default;
};

// The first of `positions`, rising, from `from` on that is not below `limit`. Cost: the logarithm of how far that is.
size_t FirstAtOrAfter(std::span<const uint32_t> positions, size_t from, uint64_t limit);

// Immutable, thread-safe.
class RankPlacement {
 public:
  // REQUIRES rows of a copy that do not overlap in the data section.
  RankPlacement(std::vector<MemoryCopy> copies, std::vector<MemoryZeros> zeros);

  // The copies that fill the memories from the data section, by what they read first.
  std::span<const MemoryCopy> copies() const { return copies_; }
  // What must be zero besides: padding, and the lower halves of BF16 in F32. Changes never touch it.
  std::span<const MemoryZeros> zeros() const { return zeros_; }
  uint64_t bytes() const;  // of both

  // Calls add(memory, to, run) for the places of data[block.offset + position], `positions` rising and within `block`:
  // the bytes at the positions of `run`, a part of them, go to byte `to` + position (mod 2^64) of `memory`.
  template <typename Add>
  void ForEachRun(ByteRange block, std::span<const uint32_t> positions, const Add& add) const;
  // Calls add(memory, StridedCopy) for the copies that bring `block` of the data section to its places.
  template <typename Add>
  void ForEachCopy(ByteRange block, const Add& add) const;

 private:
  struct Group {
    uint64_t offset = 0;
    uint64_t end = 0;
    uint64_t reach = 0;  // the largest end of this group and all before it
    uint64_t pitch = 0;  // 0: one row
    uint32_t first = 0;
    uint32_t copies = 0;
  };

  void AddToGroups(uint32_t index);
  std::span<const MemoryCopy> CopiesOf(const Group& group) const {
    return std::span(copies_).subspan(group.first, group.copies);
  }
  // Calls visit(group) for those that reach into `bytes`.
  template <typename Visit>
  void ForEachGroup(ByteRange bytes, const Visit& visit) const;

  std::vector<MemoryCopy> copies_;
  std::vector<MemoryZeros> zeros_;
  std::vector<Group> groups_;
};

// ---- Implementation ----------------------------------------------------------------------------------------------

template <typename Visit>
void RankPlacement::ForEachGroup(ByteRange bytes, const Visit& visit) const {
  const auto first = std::partition_point(groups_.begin(), groups_.end(),
                                          [&](const Group& group) { return group.reach <= bytes.offset; });
  for (auto group = first; group != groups_.end() && group->offset < bytes.end(); ++group) {
    if (group->end > bytes.offset) visit(*group);
  }
}

template <typename Add>
void RankPlacement::ForEachRun(ByteRange block, std::span<const uint32_t> positions, const Add& add) const {
  ForEachGroup(block, [&](const Group& group) {
    const std::span<const MemoryCopy> columns = CopiesOf(group);
    const auto starts_after = [&](uint64_t column, const MemoryCopy& one) {
      return column < one.copy.source_offset - group.offset;
    };
    size_t i = group.offset <= block.offset ? 0 : FirstAtOrAfter(positions, 0, group.offset - block.offset);
    while (i < positions.size() && block.offset + positions[i] < group.end) {
      const uint64_t at = block.offset + positions[i] - group.offset;
      const uint64_t row = group.pitch == 0 ? 0 : at / group.pitch;
      const uint64_t row_begin = group.offset + row * group.pitch;
      const uint64_t column = at - row * group.pitch;
      const auto next = std::upper_bound(columns.begin(), columns.end(), column, starts_after);
      const MemoryCopy* const taker = next == columns.begin() ? nullptr : &*(next - 1);
      uint64_t end = next != columns.end() ? next->copy.source_offset + row * group.pitch
                                           : (group.pitch == 0 ? group.end : row_begin + group.pitch);
      const bool taken = taker != nullptr && column < taker->copy.source_offset - group.offset + taker->copy.row_bytes;
      if (taken) end = taker->copy.source_offset + row * group.pitch + taker->copy.row_bytes;
      const size_t to = FirstAtOrAfter(positions, i, end - block.offset);
      if (taken) {
        const layout::StridedCopy& copy = taker->copy;
        const uint64_t shift = copy.target_offset - copy.source_offset + row * (copy.target_pitch - copy.source_pitch);
        add(taker->memory, block.offset + shift, positions.subspan(i, to - i));
      }
      i = to;
    }
  });
}

template <typename Add>
void RankPlacement::ForEachCopy(ByteRange block, const Add& add) const {
  const auto turned = [](const layout::StridedCopy& copy) {
    return layout::StridedCopy{.source_offset = copy.target_offset,
                               .target_offset = copy.source_offset,
                               .rows = copy.rows,
                               .row_bytes = copy.row_bytes,
                               .source_pitch = copy.target_pitch,
                               .target_pitch = copy.source_pitch};
  };
  std::vector<layout::StridedCopy> parts;
  ForEachGroup(block, [&](const Group& group) {
    for (const MemoryCopy& one : CopiesOf(group)) {
      parts.clear();
      layout::AppendClipped(turned(one.copy), block.offset, block.end(), layout::ElementBytes{}, parts);
      for (const layout::StridedCopy& part : parts) add(one.memory, turned(part));
    }
  });
}

}  // namespace lockstep::engine

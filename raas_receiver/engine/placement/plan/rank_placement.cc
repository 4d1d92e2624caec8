#include "raas_receiver/engine/placement/plan/rank_placement.h"

#include <tuple>
#include <utility>

namespace lockstep::engine {

size_t FirstAtOrAfter(std::span<const uint32_t> positions, size_t from, uint64_t limit) {
  // Runs are often a few units, or all that are left.
  if (from == positions.size() || positions.back() < limit) return positions.size();
  size_t low = from;
  size_t step = 1;
  while (low + step < positions.size() && positions[low + step] < limit) {
    low += step;
    step *= 2;
  }
  const auto first = positions.begin() + static_cast<ptrdiff_t>(low);
  const auto last = positions.begin() + static_cast<ptrdiff_t>(std::min(low + step, positions.size()));
  return static_cast<size_t>(std::lower_bound(first, last, limit) - positions.begin());
}

RankPlacement::RankPlacement(std::vector<MemoryCopy> copies, std::vector<MemoryZeros> zeros)
    : copies_(std::move(copies)), zeros_(std::move(zeros)) {
  std::sort(copies_.begin(), copies_.end(), [](const MemoryCopy& a, const MemoryCopy& b) {
    return std::tie(a.copy.source_offset, a.memory, a.copy.target_offset) <
           std::tie(b.copy.source_offset, b.memory, b.copy.target_offset);
  });
  for (uint32_t index = 0; index < copies_.size(); ++index) AddToGroups(index);
}

void RankPlacement::AddToGroups(uint32_t index) {
  const layout::StridedCopy& copy = copies_[index].copy;
  const uint64_t end = copy.source_offset + (copy.rows - 1) * copy.source_pitch + copy.row_bytes;
  if (!groups_.empty() && copy.rows > 1) {
    Group& last = groups_.back();
    const layout::StridedCopy& before = copies_[index - 1].copy;
    if (before.rows == copy.rows && last.pitch == copy.source_pitch &&
        copy.source_offset >= before.source_offset + before.row_bytes &&
        copy.source_offset + copy.row_bytes <= last.offset + last.pitch) {
      last.end = end;
      last.reach = std::max(last.reach, end);
      ++last.copies;
      return;
    }
  }
  const uint64_t reach = groups_.empty() ? end : std::max(groups_.back().reach, end);
  groups_.push_back({copy.source_offset, end, reach, copy.rows == 1 ? 0 : copy.source_pitch, index, 1});
}

uint64_t RankPlacement::bytes() const {
  uint64_t bytes = 0;
  for (const MemoryCopy& one : copies_) bytes += one.copy.bytes();
  for (const MemoryZeros& one : zeros_) bytes += one.range.bytes();
  return bytes;
}

}  // namespace lockstep::engine

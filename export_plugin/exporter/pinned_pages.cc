#include "export_plugin/exporter/pinned_pages.h"

#include <algorithm>

namespace lockstep::exporter {
namespace {

// What is not worth a range of its own.
constexpr uint64_t kGapBytes = uint64_t{1} << 20;

struct Interval {
  uint64_t begin;
  uint64_t end;
};

}  // namespace

std::vector<std::span<std::byte>> PagesOf(std::byte* data, std::span<const StridedRange> ranges, uint64_t page_bytes) {
  std::vector<Interval> touched;
  const auto base = reinterpret_cast<uint64_t>(data);
  for (const StridedRange& range : ranges) {
    if (range.bytes() == 0) continue;
    const uint64_t begin = base + range.offset;
    const uint64_t end = begin + (range.rows - 1) * range.pitch + range.row_bytes;
    touched.push_back({begin / page_bytes * page_bytes, (end + page_bytes - 1) / page_bytes * page_bytes});
  }
  std::sort(touched.begin(), touched.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> merged;
  for (const Interval& next : touched) {
    if (!merged.empty() && next.begin < merged.back().end + kGapBytes) {
      merged.back().end = std::max(merged.back().end, next.end);
    } else {
      merged.push_back(next);
    }
  }
  std::vector<std::span<std::byte>> pages;
  for (const Interval& one : merged) {
    for (uint64_t at = one.begin; at < one.end; at += kPinChunkBytes) {
      pages.emplace_back(data + (at - base), std::min(kPinChunkBytes, one.end - at));
    }
  }
  return pages;
}

uint64_t PinnedRanges::Alike(const std::byte* address, uint64_t bytes) const {
  const auto next = ends_.upper_bound(address);
  if (next != ends_.begin()) {
    const std::byte* const end = std::prev(next)->second;
    if (address < end) return std::min(bytes, static_cast<uint64_t>(end - address));
  }
  return next == ends_.end() ? bytes : std::min(bytes, static_cast<uint64_t>(next->first - address));
}

void PinnedRanges::AppendCut(const layout::StridedCopy& copy, const std::byte* host, bool is_target,
                             std::vector<layout::StridedCopy>& parts) const {
  const uint64_t offset = is_target ? copy.target_offset : copy.source_offset;
  const uint64_t pitch = is_target ? copy.target_pitch : copy.source_pitch;
  for (uint64_t row = 0; row < copy.rows;) {
    layout::StridedCopy part = copy;
    part.source_offset += row * copy.source_pitch;
    part.target_offset += row * copy.target_pitch;
    const uint64_t left = (copy.rows - 1 - row) * pitch + copy.row_bytes;
    const uint64_t alike = Alike(host + offset + row * pitch, left);
    if (alike >= copy.row_bytes) {
      part.rows = pitch == 0 ? copy.rows - row : (alike - copy.row_bytes) / pitch + 1;
      parts.push_back(part);
      row += part.rows;
      continue;
    }
    for (uint64_t at = 0; at < copy.row_bytes;) {
      layout::StridedCopy piece{.source_offset = part.source_offset + at, .target_offset = part.target_offset + at};
      piece.row_bytes = Alike(host + offset + row * pitch + at, copy.row_bytes - at);
      parts.push_back(piece);
      at += piece.row_bytes;
    }
    ++row;
  }
}

}  // namespace lockstep::exporter

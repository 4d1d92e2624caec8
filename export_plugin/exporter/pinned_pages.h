// PinnedRanges: which pages of host memory are pinned. It cuts copies so that none lies in two pinned ranges: CUDA
// takes memory that is pinned as a whole, or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/layout/strided_copy.h"

namespace lockstep::exporter {

constexpr uint64_t kPinChunkBytes = uint64_t{256} << 20;

// The pages that `ranges`, counted from `data`, touch: whole pages of `page_bytes`, in ascending order, disjoint, each
// piece at most kPinChunkBytes. Rows of a range count with what is between them, and so does a gap below 1 MiB.
std::vector<std::span<std::byte>> PagesOf(std::byte* data, std::span<const StridedRange> ranges, uint64_t page_bytes);

// Disjoint ranges of addresses.
class PinnedRanges {
 public:
  void Add(std::span<const std::byte> range) { ends_[range.data()] = range.data() + range.size(); }
  void Remove(const std::byte* begin) { ends_.erase(begin); }

  // How many bytes from `address` on are alike: in one pinned range, or in none. At most `bytes`.
  uint64_t Alike(const std::byte* address, uint64_t bytes) const;

  // Cuts `copy`, which converts no elements, into parts that are alike on the host's side, and appends them to `parts`.
  // The offsets of that side count from `host`; `is_target` says which side it is.
  void AppendCut(const layout::StridedCopy& copy, const std::byte* host, bool is_target,
                 std::vector<layout::StridedCopy>& parts) const;

 private:
  std::map<const std::byte*, const std::byte*> ends_;  // by begin
};

}  // namespace lockstep::exporter

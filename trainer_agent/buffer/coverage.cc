#include "trainer_agent/buffer/coverage.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep {

Coverage::Coverage(const ModelLayout& layout) : layout_(layout), missing_bytes_(layout.block_count()) {
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    missing_bytes_[block] = static_cast<uint32_t>(layout.block_range(block).bytes);
  }
}

Result<std::vector<BlockIndex>> Coverage::Add(ByteRange range) {
  std::vector<BlockIndex> completed;
  if (range.bytes == 0) return completed;
  if (range.offset >= layout_.data_bytes() || range.bytes > layout_.data_bytes() - range.offset) {
    return Status(ErrorCode::kBadData, Cat("bytes ", range.offset, " + ", range.bytes,
                                           " are outside the data section of ", layout_.data_bytes(), " bytes"));
  }
  auto after = ranges_.upper_bound(range.offset);
  const bool touches_before = after != ranges_.begin() && std::prev(after)->second >= range.offset;
  const bool overlaps = (touches_before && std::prev(after)->second > range.offset) ||
                        (after != ranges_.end() && after->first < range.end());
  if (overlaps) {
    return Status(ErrorCode::kBadData, Cat("bytes ", range.offset, " + ", range.bytes, " (tensor \"",
                                           layout_.tensors()[layout_.TensorAt(range.offset)].name,
                                           "\") were told twice: each byte has one writer"));
  }
  uint64_t start = range.offset;
  uint64_t end = range.end();
  if (after != ranges_.end() && after->first == end) {
    end = after->second;
    after = ranges_.erase(after);
  }
  if (touches_before) {
    start = std::prev(after)->first;
    ranges_.erase(std::prev(after));
  }
  ranges_[start] = end;
  covered_bytes_ += range.bytes;
  for (uint64_t at = range.offset; at < range.end();) {
    const auto block = static_cast<BlockIndex>(at / layout_.block_bytes());
    const uint64_t stop = std::min(range.end(), layout_.block_range(block).end());
    missing_bytes_[block] -= static_cast<uint32_t>(stop - at);
    if (missing_bytes_[block] == 0) completed.push_back(block);
    at = stop;
  }
  return completed;
}

std::optional<ByteRange> Coverage::FirstMissing() const {
  uint64_t end = 0;
  for (const auto& [start, stop] : ranges_) {
    if (start > end) return ByteRange{end, start - end};
    end = stop;
  }
  if (end == layout_.data_bytes()) return std::nullopt;
  return ByteRange{end, layout_.data_bytes() - end};
}

}  // namespace lockstep

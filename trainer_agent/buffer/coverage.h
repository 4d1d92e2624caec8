// Coverage: which bytes of a version its ranks have told to be final.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "common/model/layout.h"

namespace lockstep {

// Not thread-safe.
class Coverage {
 public:
  explicit Coverage(const ModelLayout& layout);

  // Adds `range` and returns the blocks that it completed. kBadData, naming the tensor, for a range outside the data
  // section or one with a byte that was told before; nothing is added then.
  Result<std::vector<BlockIndex>> Add(ByteRange range);

  bool complete() const { return covered_bytes_ == layout_.data_bytes(); }
  // The first range that nobody told; no value when complete.
  std::optional<ByteRange> FirstMissing() const;

 private:
  const ModelLayout& layout_;
  std::map<uint64_t, uint64_t> ranges_;  // start -> end, merged, disjoint
  std::vector<uint32_t> missing_bytes_;  // of each block
  uint64_t covered_bytes_ = 0;
};

}  // namespace lockstep

// Which units of a block a chain of deltas changes: read from their entries, for DeltaWrites.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/payload/payload.h"

namespace lockstep::engine {

// Blocks that some delta has an entry for, rising. kCorrupt for one that the layout does not have.
Result<std::vector<BlockIndex>> ChangedBlocks(const model::ModelLayout& layout, const payload::DeltaChain& chain);

// One block after the other, in memory that is used again. Threads: one at a time. `layout` and `chain` outlive it.
class ChangedUnits {
 public:
  ChangedUnits(const model::ModelLayout& layout, const payload::DeltaChain& chain) : layout_(layout), chain_(chain) {}

  // kCorrupt for an entry that cannot be decoded.
  Status Read(BlockIndex block);

  // Of the block that was read. A delta has it in full.
  bool whole() const { return whole_; }
  // Bytes into the block where changed units begin, rising, each once. Meaningless where whole().
  std::span<const uint32_t> positions() const { return positions_; }

 private:
  void Mark();
  void TakeMarked();

  const model::ModelLayout& layout_;
  const payload::DeltaChain& chain_;
  bool whole_ = false;
  std::vector<uint32_t> positions_;
  std::vector<uint64_t> seen_;  // where there are several deltas: a bit for each unit of a block, all 0 between blocks
};

}  // namespace lockstep::engine

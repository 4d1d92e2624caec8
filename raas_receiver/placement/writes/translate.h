// From the deltas' blocks to the buffers' writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/writes/scatter_index.h"
#include "raas_receiver/placement/writes/write_list.h"
#include "raas_receiver/replica/apply.h"

namespace lockstep::placement {

// Thread-safe. Everything it is made of outlives it.
class Translator {
 public:
  Translator(const ScatterIndex& index, const model::ModelLayout& layout, const payload::DeltaChain& chain,
             std::span<const std::byte> data, size_t buffers)
      : index_(index), layout_(layout), chain_(chain), data_(data), buffers_(buffers) {}

  // The writes of `blocks` (rising, each with an entry in some step): the units that any step changes, with their
  // values in `data`. kCorrupt for an entry that cannot be decoded.
  Result<WriteList> Translate(std::span<const BlockIndex> blocks) const;

 private:
  struct Scratch;

  Status AddBlock(BlockIndex block, ScatterCursor& cursor, Scratch& scratch) const;
  Status FindPositions(BlockIndex block, Scratch& scratch) const;
  void AddUnits(ByteRange range, uint32_t unit, ScatterCursor& cursor, Scratch& scratch) const;

  const ScatterIndex& index_;
  const model::ModelLayout& layout_;
  const payload::DeltaChain& chain_;
  const std::span<const std::byte> data_;
  const size_t buffers_;
};

// Blocks that some step of `chain` has an entry for, rising. kCorrupt for one that `layout` does not have.
Result<std::vector<BlockIndex>> BlocksOf(const model::ModelLayout& layout, const payload::DeltaChain& chain);

}  // namespace lockstep::placement

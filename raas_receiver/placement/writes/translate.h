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

// Thread-safe. The plan, the layout, the chain's payloads and the data section outlive it.
class Translator {
 public:
  // For the buffers in `wanted`.
  Translator(const PlacementPlan& plan, const std::vector<bool>& wanted, const model::ModelLayout& layout,
             payload::DeltaChain chain, std::span<const std::byte> data)
      : index_(plan, wanted), layout_(layout), chain_(std::move(chain)), data_(data), buffers_(plan.buffers().size()) {}

  // Blocks that some step has an entry for, rising. kCorrupt for one that the layout does not have.
  Result<std::vector<BlockIndex>> Blocks() const;
  // The writes of `blocks` (rising, each with an entry in some step): the units that any step changes, with their
  // values in `data`. kCorrupt for an entry that cannot be decoded.
  Result<WriteList> Translate(std::span<const BlockIndex> blocks) const;

 private:
  struct Scratch;

  Status AddBlock(BlockIndex block, ScatterCursor& cursor, Scratch& scratch) const;
  Status FindPositions(BlockIndex block, Scratch& scratch) const;
  void AddUnits(ByteRange range, uint32_t unit, ScatterCursor& cursor, Scratch& scratch) const;

  const ScatterIndex index_;
  const model::ModelLayout& layout_;
  const payload::DeltaChain chain_;
  const std::span<const std::byte> data_;
  const size_t buffers_;
};

}  // namespace lockstep::placement

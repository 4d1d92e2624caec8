// From the deltas' blocks to the windows' writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/routes.h"
#include "raas_receiver/placement/write_list.h"
#include "raas_receiver/replica/apply.h"

namespace lockstep {

// Thread-safe. Everything it is made of outlives it.
class Translator {
 public:
  Translator(const Routes& routes, const ModelLayout& layout, const DeltaChain& chain, std::span<const std::byte> data,
             size_t windows)
      : routes_(routes), layout_(layout), chain_(chain), data_(data), windows_(windows) {}

  // The writes of `blocks` (rising, each with an entry in some step): the units that any step changes, with their
  // values in `data`. kCorrupt for an entry that cannot be decoded.
  Result<WriteList> Translate(std::span<const BlockIndex> blocks) const;

 private:
  struct Scratch;

  Status AddBlock(BlockIndex block, RouteCursor& cursor, Scratch& scratch) const;
  Status FindPositions(BlockIndex block, Scratch& scratch) const;
  void AddUnits(ByteRange range, uint32_t unit, RouteCursor& cursor, Scratch& scratch) const;

  const Routes& routes_;
  const ModelLayout& layout_;
  const DeltaChain& chain_;
  const std::span<const std::byte> data_;
  const size_t windows_;
};

// Blocks that some step of `chain` has an entry for, rising. kCorrupt for one that `layout` does not have.
Result<std::vector<BlockIndex>> BlocksOf(const ModelLayout& layout, const DeltaChain& chain);

}  // namespace lockstep

#include "raas_receiver/engine/placement/writes/changed_units.h"

#include <algorithm>
#include <bit>

#include "common/base/text.h"
#include "common/payload/block_codec.h"

namespace lockstep::engine {

Result<std::vector<BlockIndex>> ChangedBlocks(const model::ModelLayout& layout, const payload::DeltaChain& chain) {
  std::vector<bool> changed(layout.block_count());
  for (const auto& delta : chain) {
    for (const payload::PayloadEntry& entry : delta->entries()) {
      if (entry.block >= layout.block_count()) {
        return Status(ErrorCode::kCorrupt, Cat("version ", delta->target().version, " changes block ", entry.block,
                                               " of ", layout.block_count()));
      }
      changed[entry.block] = true;
    }
  }
  std::vector<BlockIndex> blocks;
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    if (changed[block]) blocks.push_back(block);
  }
  return blocks;
}

Status ChangedUnits::Read(BlockIndex block) {
  const uint64_t bytes = layout_.block_range(block).bytes;
  const uint32_t unit = layout_.block_unit(block);
  whole_ = false;
  positions_.clear();
  size_t entries = 0;
  for (const auto& delta : chain_) {
    const payload::PayloadEntry* entry = delta->Find(block);
    if (entry == nullptr) continue;
    if (entry->codec == static_cast<uint8_t>(payload::Codec::kRaw)) {
      whole_ = true;
      continue;
    }
    if (entries++ == 1) Mark();
    const Status status = payload::DecodePositions(delta->data(*entry), unit, bytes, positions_);
    if (!status.ok()) {
      std::fill(seen_.begin(), seen_.end(), 0);
      return status.WithContext(Cat("version ", delta->target().version, ", block ", block));
    }
    if (entries > 1) Mark();
  }
  if (entries > 1) TakeMarked();
  for (uint32_t& position : positions_) position *= unit;
  return OkStatus();
}

void ChangedUnits::Mark() {
  seen_.resize(model::kMaxBlockBytes / 64);
  for (const uint32_t position : positions_) seen_[position / 64] |= uint64_t{1} << (position % 64);
}

void ChangedUnits::TakeMarked() {
  positions_.clear();
  for (uint32_t word = 0; word < seen_.size(); ++word) {
    for (uint64_t bits = seen_[word]; bits != 0; bits &= bits - 1) {
      positions_.push_back(word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
    }
    seen_[word] = 0;
  }
}

}  // namespace lockstep::engine

#include <optional>

#include "common/base/hash.h"
#include "common/base/text.h"
#include "common/payload/payload.h"

namespace lockstep {
namespace {

// Folds the entries of one block, oldest first; no value when the block returns to its old bytes.
class BlockFolder {
 public:
  BlockFolder(const ModelLayout& layout, CodecLevel level, BlockIndex block)
      : level_(level), block_(block), unit_(layout.block_unit(block)), block_bytes_(layout.block_range(block).bytes) {}

  Status Add(const PayloadEntry& entry, ByteView data) {
    target_hash_ = entry.target_hash;
    if (entry.codec == static_cast<uint8_t>(Codec::kRaw)) {
      raw_.emplace(data.begin(), data.end());
      return raw_->size() == block_bytes_ ? OkStatus()
                                          : Status(ErrorCode::kCorrupt, Cat("block ", block_, ": short raw block"));
    }
    if (raw_) return ApplyEntry(entry, data, *raw_, next_);
    LS_RETURN_IF_ERROR(DecodeSparse(data, unit_, block_bytes_, next_).WithContext(Cat("block ", block_)));
    FoldChanges(changes_, next_, unit_, folded_);
    std::swap(changes_, folded_);
    return OkStatus();
  }

  Result<std::optional<DeltaBlock>> Finish() {
    DeltaBlock block{.block = block_, .target_hash = target_hash_};
    if (raw_) {
      block.codec = Codec::kRaw;
      block.data = std::move(*raw_);
      block.data_hash = target_hash_;
      return std::optional(std::move(block));
    }
    if (changes_.size() == 0) return std::optional<DeltaBlock>();
    block.codec = Codec::kSparse;
    block.changes = static_cast<uint32_t>(changes_.size());
    EncodeSparse(changes_, unit_, level_, block.data);
    // The old bytes are not at hand here, so there is no raw form to fall back to.
    if (block.data.size() > block_bytes_) {
      return Status(ErrorCode::kState, Cat("block ", block_, ": folding makes it larger than the block"));
    }
    block.data_hash = Hash64(block.data);
    return std::optional(std::move(block));
  }

 private:
  const CodecLevel level_;
  const BlockIndex block_;
  const uint32_t unit_;
  const size_t block_bytes_;
  uint64_t target_hash_ = 0;
  Changes changes_;
  Changes next_;
  Changes folded_;
  std::optional<Bytes> raw_;
};

Status CheckChain(std::span<const std::shared_ptr<const Payload>> chain) {
  if (chain.empty()) return {ErrorCode::kBadData, "fold: the chain is empty"};
  for (size_t i = 1; i < chain.size(); ++i) {
    const PayloadHeader& before = chain[i - 1]->header();
    const PayloadHeader& after = chain[i]->header();
    if (before.run != after.run || before.layout != after.layout || before.target != after.base ||
        before.target_digest != after.base_digest) {
      return {ErrorCode::kBadData, Cat("fold: version ", after.base, " does not follow version ", before.target)};
    }
  }
  return OkStatus();
}

Result<std::optional<DeltaBlock>> FoldBlock(const ModelLayout& layout,
                                            std::span<const std::shared_ptr<const Payload>> chain, CodecLevel level,
                                            BlockIndex index) {
  BlockFolder folder(layout, level, index);
  bool touched = false;
  for (const auto& payload : chain) {
    const PayloadEntry* entry = payload->Find(index);
    if (entry == nullptr) continue;
    touched = true;
    LS_RETURN_IF_ERROR(folder.Add(*entry, payload->data(*entry)));
  }
  if (!touched) return std::optional<DeltaBlock>();
  return folder.Finish();
}

}  // namespace

Result<std::shared_ptr<const Payload>> FoldPayloads(const ModelLayout& layout,
                                                    std::span<const std::shared_ptr<const Payload>> chain,
                                                    CodecLevel level, WorkerPool& pool) {
  LS_RETURN_IF_ERROR(CheckChain(chain));
  std::vector<Result<std::optional<DeltaBlock>>> folded(layout.block_count(), std::optional<DeltaBlock>());
  pool.ParallelFor(layout.block_count(), [&](size_t index) {
    folded[index] = FoldBlock(layout, chain, level, static_cast<BlockIndex>(index));
  });
  std::vector<DeltaBlock> blocks;
  for (auto& block : folded) {
    LS_RETURN_IF_ERROR(block);
    if (*block) blocks.push_back(**std::move(block));
  }
  const PayloadHeader& first = chain.front()->header();
  const PayloadHeader& last = chain.back()->header();
  uint32_t steps = 0;
  for (const auto& payload : chain) steps += payload->header().steps_folded;
  return Payload::Assemble(layout,
                           {.run = first.run,
                            .base = first.base,
                            .target = last.target,
                            .base_digest = first.base_digest,
                            .target_digest = last.target_digest,
                            .steps_folded = steps,
                            .committed_unix_ns = last.committed_unix_ns},
                           blocks);
}

}  // namespace lockstep

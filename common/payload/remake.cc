// New payloads out of old ones: a chain folded into one, and a delta at another level.
#include "common/base/hash.h"
#include "common/base/text.h"
#include "common/payload/block_apply.h"

namespace lockstep::payload {
namespace {

// After a raw entry the block's bytes are known, and the fold is raw too.
Status ApplyToRaw(std::span<const EntryData> entries, size_t block_bytes, DeltaBlock& folded) {
  folded.codec = Codec::kRaw;
  folded.data.resize(block_bytes);
  LS_ASSIGN_OR_RETURN(folded.data_hash, ApplyEntries(entries, folded.data));
  return OkStatus();
}

// Without one it is the sum of all steps; none are left of a block that returns to its old bytes.
Status AddUp(std::span<const EntryData> entries, size_t block_bytes, CodecLevel level, DeltaBlock& folded) {
  const uint32_t unit = entries.front().entry->unit;
  Changes sum;
  Changes next;
  Changes both;
  for (const EntryData& entry : entries) {
    LS_RETURN_IF_ERROR(DecodeSparse(entry.data, unit, block_bytes, next).WithContext(Cat("block ", folded.block)));
    FoldChanges(sum, next, unit, both);
    std::swap(sum, both);
  }
  folded.codec = Codec::kSparse;
  folded.changes = static_cast<uint32_t>(sum.size());
  if (sum.size() == 0) return OkStatus();
  EncodeSparse(sum, unit, level, folded.data);
  // The old bytes are not at hand here, so there is no raw form to fall back to.
  if (folded.data.size() > block_bytes) {
    return {ErrorCode::kState, Cat("block ", folded.block, ": folding makes it larger than the block")};
  }
  folded.data_hash = Hash64(folded.data);
  return OkStatus();
}

Status CheckChain(ChainView chain) {
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

// `folded` has no data when no entry remains of the block.
Status FoldBlock(const model::ModelLayout& layout, ChainView chain, CodecLevel level, BlockIndex index,
                 DeltaBlock& folded) {
  std::vector<EntryData> entries;
  FindEntries(chain, index, 0, entries);
  if (entries.empty()) return OkStatus();
  folded = {.block = index, .target_hash = entries.back().entry->target_hash};
  const size_t block_bytes = layout.block_range(index).bytes;
  return IsRaw(*entries.front().entry) ? ApplyToRaw(entries, block_bytes, folded)
                                       : AddUp(entries, block_bytes, level, folded);
}

Status RecodeEntry(const PayloadEntry& entry, ByteView data, size_t block_bytes, CodecLevel level, DeltaBlock& block) {
  block = {.block = entry.block,
           .codec = static_cast<Codec>(entry.codec),
           .changes = entry.changes,
           .target_hash = entry.target_hash,
           .data_hash = entry.data_hash};
  if (block.codec != Codec::kSparse) {
    block.data.assign(data.begin(), data.end());
    return OkStatus();
  }
  block.data.reserve(data.size());
  LS_RETURN_IF_ERROR(
      RecodeSparse(data, entry.unit, block_bytes, level, block.data).WithContext(Cat("block ", entry.block)));
  block.data_hash = Hash64(block.data);
  return OkStatus();
}

// Takes `first`'s base to `last`'s target by the blocks, at most `count`, that make(i, block) makes; those that stay
// without data are left out.
template <typename Make>
Result<std::shared_ptr<const Payload>> Remake(const model::ModelLayout& layout, const PayloadHeader& first,
                                              const PayloadHeader& last, uint32_t steps_folded, size_t count,
                                              WorkerPool& pool, const Unwanted& unwanted, const Make& make) {
  std::vector<DeltaBlock> blocks(count);
  LS_RETURN_IF_ERROR(pool.ParallelTry(count, [&](size_t i) {
    const bool stop = unwanted && unwanted();
    return stop ? Status(ErrorCode::kCancelled, "nobody waits for this delta any more") : make(i, blocks[i]);
  }));
  std::erase_if(blocks, [](const DeltaBlock& block) { return block.data.empty(); });
  return Payload::Assemble(layout,
                           {.run = first.run,
                            .base = first.base,
                            .target = last.target,
                            .base_digest = first.base_digest,
                            .target_digest = last.target_digest,
                            .steps_folded = steps_folded,
                            .committed_unix_ns = last.committed_unix_ns},
                           blocks);
}

}  // namespace

Result<std::shared_ptr<const Payload>> FoldPayloads(const model::ModelLayout& layout, ChainView chain, CodecLevel level,
                                                    WorkerPool& pool, const Unwanted& unwanted) {
  LS_RETURN_IF_ERROR(CheckChain(chain));
  uint32_t steps = 0;
  for (const auto& payload : chain) steps += payload->header().steps_folded;
  return Remake(
      layout, chain.front()->header(), chain.back()->header(), steps, layout.block_count(), pool, unwanted,
      [&](size_t i, DeltaBlock& block) { return FoldBlock(layout, chain, level, static_cast<BlockIndex>(i), block); });
}

Result<std::shared_ptr<const Payload>> RecodePayload(const model::ModelLayout& layout, const Payload& payload,
                                                     CodecLevel level, WorkerPool& pool, const Unwanted& unwanted) {
  const PayloadHeader& header = payload.header();
  return Remake(layout, header, header, header.steps_folded, header.entries, pool, unwanted,
                [&](size_t i, DeltaBlock& block) {
                  const PayloadEntry& entry = payload.entries()[i];
                  return RecodeEntry(entry, payload.data(entry), layout.block_range(entry.block).bytes, level, block);
                });
}

}  // namespace lockstep::payload

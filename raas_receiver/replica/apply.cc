#include "raas_receiver/replica/apply.h"

#include <algorithm>
#include <mutex>

#include "common/model/manifest.h"

namespace lockstep {
namespace {

using ChainView = std::span<const std::shared_ptr<const Payload>>;

// Blocks that some step of the chain has an entry for, rising.
std::vector<BlockIndex> TouchedBlocks(const ModelLayout& layout, ChainView chain) {
  std::vector<bool> touched(layout.block_count());
  for (const auto& step : chain) {
    for (const PayloadEntry& entry : step->entries()) touched[entry.block] = true;
  }
  std::vector<BlockIndex> blocks;
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    if (touched[block]) blocks.push_back(block);
  }
  return blocks;
}

// A kRaw entry replaces whatever was before it, so the steps before the last one need not be decoded.
size_t FirstUsefulStep(ChainView chain, BlockIndex block) {
  for (size_t i = chain.size(); i-- > 0;) {
    const PayloadEntry* entry = chain[i]->Find(block);
    if (entry != nullptr && entry->codec == static_cast<uint8_t>(Codec::kRaw)) return i;
  }
  return 0;
}

// False when the block's bytes are not what its last entry promises.
bool ApplyToBlock(ChainView chain, BlockIndex block, Version version, std::span<std::byte> bytes, Changes& scratch) {
  const PayloadEntry* last = nullptr;
  for (const auto& step : chain.subspan(FirstUsefulStep(chain, block))) {
    const PayloadEntry* entry = step->base().version >= version ? step->Find(block) : nullptr;
    if (entry == nullptr) continue;
    if (!ApplyEntry(*entry, step->data(*entry), bytes, scratch).ok()) return false;
    last = entry;
  }
  return last == nullptr || BlockHash(bytes) == last->target_hash;
}

}  // namespace

std::vector<uint64_t> HashesAfter(ChainView chain, const BlockVersions& versions, std::vector<uint64_t> hashes) {
  for (const auto& step : chain) {
    for (const PayloadEntry& entry : step->entries()) {
      if (step->base().version >= versions.of(entry.block)) hashes[entry.block] = entry.target_hash;
    }
  }
  return hashes;
}

std::vector<BlockIndex> ApplyChain(const ModelLayout& layout, ChainView chain, const BlockVersions& versions,
                                   std::span<std::byte> data, WorkerPool& pool) {
  const std::vector<BlockIndex> touched = TouchedBlocks(layout, chain);
  std::mutex mutex;
  std::vector<BlockIndex> bad;
  pool.ParallelFor(touched.size(), [&](size_t i) {
    thread_local Changes scratch;
    const BlockIndex block = touched[i];
    const ByteRange range = layout.block_range(block);
    if (ApplyToBlock(chain, block, versions.of(block), data.subspan(range.offset, range.bytes), scratch)) return;
    std::lock_guard lock(mutex);
    bad.push_back(block);
  });
  std::sort(bad.begin(), bad.end());
  return bad;
}

std::vector<uint64_t> HashBlocks(const ModelLayout& layout, std::span<const std::byte> data, WorkerPool& pool) {
  std::vector<uint64_t> hashes(layout.block_count());
  pool.ParallelFor(hashes.size(), [&](size_t i) {
    const ByteRange range = layout.block_range(static_cast<BlockIndex>(i));
    hashes[i] = BlockHash(data.subspan(range.offset, range.bytes));
  });
  return hashes;
}

}  // namespace lockstep

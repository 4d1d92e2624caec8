#include "raas_receiver/replica/apply.h"

#include <algorithm>
#include <cstring>

#include "common/base/mutex.h"
#include "common/model/manifest.h"
#include "common/payload/block_apply.h"

namespace lockstep::replica {
namespace {

// Blocks that some step of the chain has an entry for, rising.
std::vector<BlockIndex> TouchedBlocks(const model::ModelLayout& layout, payload::ChainView chain) {
  std::vector<bool> touched(layout.block_count());
  for (const auto& step : chain) {
    for (const payload::PayloadEntry& entry : step->entries()) touched[entry.block] = true;
  }
  std::vector<BlockIndex> blocks;
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    if (touched[block]) blocks.push_back(block);
  }
  return blocks;
}

// False when the block's bytes are not what its last entry promises.
bool ApplyToBlock(payload::ChainView chain, BlockIndex block, Version version, std::span<std::byte> bytes) {
  thread_local std::vector<payload::EntryData> entries;
  payload::FindEntries(chain, block, version, entries);
  if (entries.empty()) return true;
  const Result<uint64_t> hash = payload::ApplyEntries(entries, bytes);
  return hash.ok() && *hash == entries.back().entry->target_hash;
}

// False when the copy does not have `hash`.
bool CopyBlock(const ByteRange& range, uint64_t hash, std::span<const std::byte> from, std::span<std::byte> to) {
  const std::span<std::byte> copied = to.subspan(range.offset, range.bytes);
  std::memcpy(copied.data(), from.data() + range.offset, range.bytes);
  return model::BlockHash(copied) == hash;
}

// Calls `work` for each of `blocks`, spread over `pool`, and answers those that it was false for, rising.
template <typename Work>
std::vector<BlockIndex> FailedBlocks(const std::vector<BlockIndex>& blocks, const Work& work, WorkerPool& pool) {
  Mutex mutex;
  std::vector<BlockIndex> failed;
  pool.ParallelFor(blocks.size(), [&](size_t i) {
    if (work(blocks[i])) return;
    MutexLock lock(mutex);
    failed.push_back(blocks[i]);
  });
  std::sort(failed.begin(), failed.end());
  return failed;
}

}  // namespace

std::vector<uint64_t> HashesAfter(payload::ChainView chain, std::span<const Version> versions,
                                  std::vector<uint64_t> hashes) {
  for (const auto& step : chain) {
    for (const payload::PayloadEntry& entry : step->entries()) {
      if (step->base().version >= versions[entry.block]) hashes[entry.block] = entry.target_hash;
    }
  }
  return hashes;
}

std::vector<BlockIndex> ApplyChain(const model::ModelLayout& layout, payload::ChainView chain,
                                   std::span<const Version> versions, std::span<std::byte> data, WorkerPool& pool) {
  const std::vector<BlockIndex> touched = TouchedBlocks(layout, chain);
  const auto apply = [&](BlockIndex block) {
    const ByteRange range = layout.block_range(block);
    return ApplyToBlock(chain, block, versions[block], data.subspan(range.offset, range.bytes));
  };
  return FailedBlocks(touched, apply, pool);
}

std::vector<BlockIndex> CopyBlocks(const model::ModelLayout& layout, std::span<const uint64_t> hashes,
                                   std::span<const std::byte> from, std::span<std::byte> to, WorkerPool& pool) {
  const auto copy = [&](BlockIndex block) { return CopyBlock(layout.block_range(block), hashes[block], from, to); };
  return FailedBlocks(layout.AllBlocks(), copy, pool);
}

std::vector<BlockIndex> CompleteBlocks(const model::ModelLayout& layout, std::span<const uint64_t> hashes,
                                       std::span<const std::byte> from, std::span<std::byte> to, WorkerPool& pool) {
  const auto complete = [&](BlockIndex block) {
    const ByteRange range = layout.block_range(block);
    const bool whole = model::BlockHash(to.subspan(range.offset, range.bytes)) == hashes[block];
    return whole || CopyBlock(range, hashes[block], from, to);
  };
  return FailedBlocks(layout.AllBlocks(), complete, pool);
}

std::vector<BlockIndex> Differing(std::span<const uint64_t> hashes, std::span<const uint64_t> recorded) {
  std::vector<BlockIndex> blocks;
  for (BlockIndex block = 0; block < hashes.size(); ++block) {
    if (hashes[block] != recorded[block]) blocks.push_back(block);
  }
  return blocks;
}

std::vector<uint64_t> HashBlocks(const model::ModelLayout& layout, std::span<const std::byte> data, WorkerPool& pool) {
  std::vector<uint64_t> hashes(layout.block_count());
  pool.ParallelFor(hashes.size(), [&](size_t i) {
    const ByteRange range = layout.block_range(static_cast<BlockIndex>(i));
    hashes[i] = model::BlockHash(data.subspan(range.offset, range.bytes));
  });
  return hashes;
}

}  // namespace lockstep::replica

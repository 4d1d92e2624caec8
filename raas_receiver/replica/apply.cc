#include "raas_receiver/replica/apply.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "common/model/manifest.h"
#include "kernels/apply.h"

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

// So many steps of a block are added in one pass over it. More would keep more decoded than it is worth.
constexpr size_t kStepsAtOnce = 4;

struct EntryData {
  const PayloadEntry* entry;
  ByteView data;
};

// What one thread decodes a block's steps into, kept at full size.
struct Scratch {
  std::vector<EntryData> entries;
  std::array<Changes, kStepsAtOnce> changes;
};

bool IsRaw(const PayloadEntry& entry) {
  return entry.codec == static_cast<uint8_t>(Codec::kRaw);
}

// The entries that `block` at `version` still needs. A kRaw one replaces whatever was before it, so it is the first.
void FindEntries(ChainView chain, BlockIndex block, Version version, std::vector<EntryData>& entries) {
  entries.clear();
  for (const auto& step : chain) {
    const PayloadEntry* entry = step->base().version >= version ? step->Find(block) : nullptr;
    if (entry == nullptr) continue;
    if (IsRaw(*entry)) entries.clear();
    entries.push_back({entry, step->data(*entry)});
  }
}

// Decodes and adds `entries`, at most kStepsAtOnce; the hash of what comes out. All are decoded before the first is
// added: then the block comes from memory once.
Result<uint64_t> AddEntries(std::span<const EntryData> entries, uint32_t unit, std::span<std::byte> bytes,
                            std::span<Changes> changes) {
  std::array<kernels::BlockChanges, kStepsAtOnce> deltas;
  kernels::FetchFront(bytes.data(), bytes.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    LS_RETURN_IF_ERROR(DecodeSparse(entries[i].data, unit, bytes.size(), changes[i]));
    deltas[i] = {changes[i].positions.data(), changes[i].steps.data(), changes[i].size()};
  }
  return kernels::AddStepsAndHash(bytes.data(), bytes.size(), unit, std::span(deltas).first(entries.size()));
}

// False when the block's bytes are not what its last entry promises.
bool ApplyToBlock(ChainView chain, BlockIndex block, uint32_t unit, Version version, std::span<std::byte> bytes,
                  Scratch& scratch) {
  FindEntries(chain, block, version, scratch.entries);
  std::span<const EntryData> rest = scratch.entries;
  if (rest.empty()) return true;
  const uint64_t promised = rest.back().entry->target_hash;
  if (IsRaw(*rest.front().entry)) {
    if (rest.front().data.size() != bytes.size()) return false;
    std::memcpy(bytes.data(), rest.front().data.data(), bytes.size());
    rest = rest.subspan(1);
  }
  if (rest.empty()) return BlockHash(bytes) == promised;
  uint64_t hash = 0;
  while (!rest.empty()) {
    const size_t some = std::min(rest.size(), kStepsAtOnce);
    const Result<uint64_t> added = AddEntries(rest.first(some), unit, bytes, scratch.changes);
    if (!added.ok()) return false;
    hash = *added;
    rest = rest.subspan(some);
  }
  return hash == promised;
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
    thread_local Scratch scratch;
    const BlockIndex block = touched[i];
    const ByteRange range = layout.block_range(block);
    const auto bytes = data.subspan(range.offset, range.bytes);
    if (ApplyToBlock(chain, block, layout.block_unit(block), versions.of(block), bytes, scratch)) return;
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

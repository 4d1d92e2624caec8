// Layouts, deltas and versions that are made up, and a buffer that has versions. For tests.
#pragma once

#include <memory>
#include <vector>

#include "common/os/segment.h"
#include "kernels/hash.h"
#include "trainer_agent/run/version_catalog.h"

namespace lockstep::run {

// One tensor of `units` units of 16 bits, in blocks of 4 KiB.
inline std::shared_ptr<const model::ModelLayout> LayoutOf(uint64_t units) {
  return *model::ModelLayout::Create({{"w", model::DType::kU16, {units}, 0}}, 4096);
}

// An empty buffer in memory.
inline std::shared_ptr<DoubleBuffer> BufferOf(const model::ModelLayout& layout, const std::string& model = "actor") {
  return *DoubleBuffer::Create(model, RandomId<RunId>(), layout, 1, os::CreateMemfdSegment);
}

// Commits `version`, filled by `fill`, in the buffer alone. Waits for readers of the version before the last one.
template <typename Fill>
void Write(DoubleBuffer& buffer, Version version, Fill fill) {
  const size_t slot = buffer.BeginWrite(version);
  fill(buffer.data(slot));
  buffer.Commit(slot, static_cast<int64_t>(version));
}

// The data section that holds `version`. REQUIRES the version to be in memory.
inline std::byte* MemoryOf(const DoubleBuffer& buffer, Version version) {
  return buffer.data(buffer.control().version(0) == version ? 0 : 1);
}

// Makes `version` and those before unreadable, as when a trainer writes over them.
inline void Forget(DoubleBuffer& buffer, Version version) {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (buffer.control().version(slot) <= version) buffer.Drop(slot);
  }
}

// The manifest of a version in memory.
inline std::shared_ptr<model::Manifest> ManifestOf(const DoubleBuffer& buffer, Version version) {
  const model::ModelLayout& layout = *buffer.layout();
  auto manifest = std::make_shared<model::Manifest>(model::Manifest{{buffer.run(), version}, {}, {}});
  for (const BlockIndex block : layout.AllBlocks()) {
    const ByteRange range = layout.block_range(block);
    manifest->block_hashes.push_back(model::BlockHash({MemoryOf(buffer, version) + range.offset, range.bytes}));
  }
  manifest->digest = model::ComputeManifestDigest(layout.digest(), manifest->block_hashes);
  return manifest;
}

// What changes in a block of such a layout.
inline payload::DeltaBlock SparseBlock(BlockIndex block, const payload::Changes& changes, uint64_t target_hash) {
  payload::DeltaBlock made{.block = block,
                           .codec = payload::Codec::kSparse,
                           .changes = static_cast<uint32_t>(changes.size()),
                           .target_hash = target_hash};
  payload::EncodeSparse(changes, 2, payload::CodecLevel::kFast, made.data);
  made.data_hash = Hash64(made.data);
  return made;
}

inline ManifestDigest DigestOf(Version version) {
  ManifestDigest digest;
  digest.bytes[0] = static_cast<uint8_t>(version);
  return digest;
}

// The deltas of one run, version by version.
struct Chain {
  std::shared_ptr<const model::ModelLayout> layout = LayoutOf(20000);
  RunId run = RandomId<RunId>();

  // Version `base` to the next: three elements of the first block change by 1.
  Status Add(DeltaStore& store, Version base) const {
    return Add(store, base, {.positions = {0, 2, 4}, .steps = {1, 1, 1}});
  }
  Status Add(DeltaStore& store, Version base, const payload::Changes& changes) const {
    const payload::DeltaBlock block = SparseBlock(0, changes, base + 1);
    return store.Add({.run = run,
                      .base = base,
                      .target = base + 1,
                      .base_digest = DigestOf(base),
                      .target_digest = DigestOf(base + 1)},
                     {&block});
  }
  model::Manifest Newest(Version version) const {
    return {.held = {run, version}, .block_hashes = {}, .digest = DigestOf(version)};
  }
};

}  // namespace lockstep::run

// Layouts, deltas and versions that are made up. For tests.
#pragma once

#include <memory>
#include <vector>

#include "common/base/hash.h"
#include "trainer_agent/run/version_catalog.h"

namespace lockstep::run {

// One tensor of `units` units of 16 bits, in blocks of 4 KiB.
inline std::shared_ptr<const model::ModelLayout> LayoutOf(uint64_t units) {
  return *model::ModelLayout::Create({{"w", model::DType::kU16, {units}, 0}}, 4096);
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
    return store
        .Add({.run = run,
              .base = base,
              .target = base + 1,
              .base_digest = DigestOf(base),
              .target_digest = DigestOf(base + 1)},
             {&block})
        .status();
  }
  model::Manifest Newest(Version version) const {
    return {.held = {run, version}, .block_hashes = {}, .digest = DigestOf(version)};
  }
};

}  // namespace lockstep::run

// A small model that changes as training would change it, with what a trainer agent would make of it. For tests.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/model/layout.h"
#include "common/model/manifest.h"
#include "common/payload/payload.h"
#include "kernels/diff.h"
#include "kernels/hash.h"
#include "raas_receiver/replica/apply.h"

namespace lockstep::replica {

// Versions are made by Advance; each stays available. REQUIREs of Catch2 are not used, so that any thread may call it.
class TestModel {
 public:
  explicit TestModel(uint32_t seed = 1, uint64_t elements = 20'000, model::Attachments attachments = {})
      : random_(seed), run_(RandomId<RunId>()) {
    std::vector<model::TensorMeta> tensors{{"embed", model::DType::kBF16, {elements / 100, 100}, 0},
                                           {"norm", model::DType::kF32, {999}, 0},
                                           {"empty", model::DType::kF32, {0, 7}, 0},
                                           {"scale", model::DType::kF32, {}, 0},
                                           {"codes", model::DType::kI8, {elements / 2 + 13}, 0}};
    (void)model::AssignOffsets(tensors);
    layout_ = *model::ModelLayout::Create(std::move(tensors), model::kMinBlockBytes, std::move(attachments));
  }

  TestModel(std::shared_ptr<const model::ModelLayout> layout, uint32_t seed)
      : random_(seed), run_(RandomId<RunId>()), layout_(std::move(layout)) {}

  const std::shared_ptr<const model::ModelLayout>& layout() const { return layout_; }
  const RunId& run() const { return run_; }
  VersionRef held(Version version) const { return {run_, version}; }
  const Bytes& data(Version version) const { return versions_.at(version); }

  bool has(Version version) const { return versions_.contains(version); }

  // Its last block stays as version 1 made it, as frozen parameters do.
  bool frozen_end = false;

  // The next version: the first is random, later ones change about one byte in `sparsity` (and all of one block now and
  // then).
  Version Advance(uint32_t sparsity = 200) {
    const Version version = versions_.empty() ? 1 : versions_.rbegin()->first + 1;
    Bytes data = versions_.empty() ? Bytes(layout_->data_bytes()) : versions_.rbegin()->second;
    const uint32_t one_in = versions_.empty() ? 1 : sparsity;
    const BlockIndex changing = layout_->block_count() - (frozen_end ? 1 : 0);
    const uint64_t end = versions_.empty() ? data.size() : layout_->block_range(changing - 1).end();
    for (std::byte& byte : std::span(data).first(end)) {
      if (random_() % one_in == 0) byte = static_cast<std::byte>(random_());
    }
    if (version % 3 == 0) {
      const ByteRange range = layout_->block_range(static_cast<BlockIndex>(random_() % changing));
      for (uint64_t i = 0; i < range.bytes; ++i) data[range.offset + i] = static_cast<std::byte>(random_());
    }
    versions_[version] = std::move(data);
    return version;
  }

  model::Manifest manifest(Version version) const {
    model::Manifest manifest{held(version), {}, {}};
    for (BlockIndex block = 0; block < layout_->block_count(); ++block) {
      manifest.block_hashes.push_back(model::BlockHash(block_of(version, block)));
    }
    manifest.digest = model::ComputeManifestDigest(layout_->digest(), manifest.block_hashes);
    return manifest;
  }

  ByteView block_of(Version version, BlockIndex block) const {
    const ByteRange range = layout_->block_range(block);
    return ByteView(data(version)).subspan(range.offset, range.bytes);
  }

  std::vector<payload::DeltaBlock> DeltaBlocks(Version base, Version target) const {
    std::vector<payload::DeltaBlock> blocks;
    for (BlockIndex block = 0; block < layout_->block_count(); ++block) {
      payload::Changes changes = Diff(base, target, block);
      if (changes.size() == 0) continue;
      const ByteView bytes = block_of(target, block);
      payload::DeltaBlock delta{
          block, payload::Codec::kSparse, static_cast<uint32_t>(changes.size()), model::BlockHash(bytes), 0, {}};
      payload::EncodeSparse(changes, layout_->block_unit(block), payload::CodecLevel::kCompact, delta.data);
      if (delta.data.size() >= bytes.size()) {
        delta.codec = payload::Codec::kRaw;
        delta.data.assign(bytes.begin(), bytes.end());
      }
      delta.data_hash = Hash64(delta.data);
      blocks.push_back(std::move(delta));
    }
    return blocks;
  }

  std::shared_ptr<const payload::Payload> Delta(Version base, Version target, int64_t committed_unix_ns = 0) const {
    const payload::PayloadIdentity identity{
        run_, base, target, manifest(base).digest, manifest(target).digest, committed_unix_ns};
    return *payload::Payload::Assemble(*layout_, identity, DeltaBlocks(base, target));
  }

  // The deltas from `base` to `target`, one per version.
  payload::DeltaChain Chain(Version base, Version target) const {
    payload::DeltaChain chain;
    for (Version version = base; version < target; ++version) chain.push_back(Delta(version, version + 1));
    return chain;
  }

 private:
  payload::Changes Diff(Version base, Version target, BlockIndex block) const {
    const ByteView before = block_of(base, block);
    const ByteView after = block_of(target, block);
    const uint32_t unit = layout_->block_unit(block);
    payload::Changes changes;
    changes.positions.resize(after.size());
    changes.steps.resize(after.size());
    const size_t count = kernels::FindChangesAndHash(before.data(), after.data(), after.size(), unit,
                                                     changes.positions.data(), changes.steps.data())
                             .changes;
    changes.positions.resize(count);
    changes.steps.resize(count);
    return changes;
  }

  std::mt19937 random_;
  RunId run_;
  std::shared_ptr<const model::ModelLayout> layout_;
  std::map<Version, Bytes> versions_;
};

}  // namespace lockstep::replica

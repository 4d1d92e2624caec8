// Manifest: the hash of every block of one version, and one digest over them that proves the whole.
#pragma once

#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/model/layout.h"

namespace lockstep::model {

// xxh3-64 of a block's bytes.
uint64_t BlockHash(ByteView block);

// Over the layout digest and the block hashes in order; it does not depend on run or version, so equal bytes of equal
// layouts have equal digests.
ManifestDigest ComputeManifestDigest(const LayoutDigest& layout, const std::vector<uint64_t>& block_hashes);

// Of a version that has `layout`. Of a joined one, the digest is over the layout digest and the digests of the parts.
ManifestDigest ComputeManifestDigest(const ModelLayout& layout, const std::vector<uint64_t>& block_hashes);
// Of a joined layout. REQUIRES the digest of each of its parts.
ManifestDigest JoinedDigest(const ModelLayout& layout, std::span<const ManifestDigest> parts);
// The digest of each part of a joined layout.
std::vector<ManifestDigest> PartDigests(const ModelLayout& layout, std::span<const uint64_t> block_hashes);

struct Manifest {
  VersionRef held;
  std::vector<uint64_t> block_hashes;  // block_count() of them
  ManifestDigest digest;
};

// Names of the tensors that share bytes with any of `blocks`, each once, in layout order.
std::vector<std::string> TensorsInBlocks(const ModelLayout& layout, const std::vector<BlockIndex>& blocks);

}  // namespace lockstep::model

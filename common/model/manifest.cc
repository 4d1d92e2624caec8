#include "common/model/manifest.h"

#include "kernels/hash.h"

namespace lockstep::model {

uint64_t BlockHash(ByteView block) {
  return Hash64(block);
}

namespace {

ManifestDigest DigestOver(const LayoutDigest& layout, ByteView bytes) {
  Bytes image;
  image.reserve(layout.bytes.size() + bytes.size());
  AppendBytes(image, AsBytes(layout.bytes));
  AppendBytes(image, bytes);
  return ManifestDigest{Hash128(image)};
}

}  // namespace

ManifestDigest ComputeManifestDigest(const LayoutDigest& layout, const std::vector<uint64_t>& block_hashes) {
  return DigestOver(layout, std::as_bytes(std::span(block_hashes)));
}

ManifestDigest ComputeManifestDigest(const ModelLayout& layout, const std::vector<uint64_t>& block_hashes) {
  if (layout.parts().empty()) return ComputeManifestDigest(layout.digest(), block_hashes);
  return JoinedDigest(layout, PartDigests(layout, block_hashes));
}

ManifestDigest JoinedDigest(const ModelLayout& layout, std::span<const ManifestDigest> parts) {
  return DigestOver(layout.digest(), std::as_bytes(parts));
}

std::vector<ManifestDigest> PartDigests(const ModelLayout& layout, std::span<const uint64_t> block_hashes) {
  std::vector<ManifestDigest> digests;
  const auto& parts = layout.parts();
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t end = i + 1 < parts.size() ? parts[i + 1].first_block : block_hashes.size();
    const auto its = block_hashes.subspan(parts[i].first_block, end - parts[i].first_block);
    digests.push_back(DigestOver(parts[i].digest, std::as_bytes(its)));
  }
  return digests;
}

std::vector<std::string> TensorsInBlocks(const ModelLayout& layout, const std::vector<BlockIndex>& blocks) {
  const std::vector<TensorMeta>& tensors = layout.tensors();
  std::vector<bool> touched(tensors.size());
  size_t at = 0;  // a tensor that starts at the last block's end or before: blocks mostly come in order
  for (const BlockIndex block : blocks) {
    const ByteRange range = layout.block_range(block);
    if (tensors[at].offset > range.offset) at = layout.TensorAt(range.offset);
    while (at + 1 < tensors.size() && tensors[at + 1].offset <= range.offset) ++at;
    for (; at < tensors.size() && tensors[at].offset < range.end(); ++at) touched[at] = layout.tensor_bytes(at) > 0;
    --at;
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < touched.size(); ++i) {
    if (touched[i]) names.push_back(layout.tensors()[i].name);
  }
  return names;
}

}  // namespace lockstep::model

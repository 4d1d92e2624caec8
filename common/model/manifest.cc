#include "common/model/manifest.h"

#include "kernels/hash.h"

namespace lockstep::model {

uint64_t BlockHash(ByteView block) {
  return Hash64(block);
}

ManifestDigest ComputeManifestDigest(const LayoutDigest& layout, const std::vector<uint64_t>& block_hashes) {
  Bytes image;
  image.reserve(layout.bytes.size() + block_hashes.size() * sizeof(uint64_t));
  AppendBytes(image, AsBytes(layout.bytes));
  AppendBytes(image, std::as_bytes(std::span(block_hashes)));
  return ManifestDigest{Hash128(image)};
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

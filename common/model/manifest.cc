#include "common/model/manifest.h"

#include "common/base/hash.h"

namespace lockstep {

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
  std::vector<bool> touched(layout.tensors().size());
  for (const BlockIndex block : blocks) {
    const auto [first, last] = layout.TensorsIn(layout.block_range(block));
    for (size_t i = first; i < last; ++i) touched[i] = layout.tensor_bytes(i) > 0;
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < touched.size(); ++i) {
    if (touched[i]) names.push_back(layout.tensors()[i].name);
  }
  return names;
}

}  // namespace lockstep

// The small model that seeds are made of, and versions of it.
#pragma once

#include <memory>

#include "common/model/layout.h"
#include "common/model/manifest.h"
#include "kernels/hash.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

// Three blocks, the last one short; units of 2, 2 and 1 bytes.
inline const std::shared_ptr<const model::ModelLayout>& SmallLayout() {
  static const auto layout = *model::ModelLayout::Create({{"norm", model::DType::kF32, {2}, 0},
                                                          {"w", model::DType::kBF16, {64, 64}, 8},
                                                          {"mask", model::DType::kU8, {100}, 8200}},
                                                         4096);
  return layout;
}

inline RunId SmallRun() {
  RunId run;
  for (uint8_t i = 0; i < 16; ++i) run.bytes[i] = i;
  return run;
}

// Of a version with only zero bytes.
inline model::Manifest SmallManifest(Version version) {
  const model::ModelLayout& layout = *SmallLayout();
  model::Manifest manifest{.held = {SmallRun(), version}};
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    manifest.block_hashes.push_back(model::BlockHash(Bytes(layout.block_range(block).bytes)));
  }
  manifest.digest = model::ComputeManifestDigest(layout.digest(), manifest.block_hashes);
  return manifest;
}

// Whether `input` has an encoded layout of very many blocks. Forty bytes may name 2^26, and decoding them takes as much
// memory, as it should; a fuzzer would do little else.
inline bool NamesManyBlocks(ByteView input) {
  constexpr uint64_t kMostBlocks = 1 << 12;
  constexpr std::string_view kMagic = "LSLAYOUT";
  const size_t at = AsText(input).find(kMagic);
  if (at == std::string_view::npos || input.size() - at < 24) return false;
  uint32_t block_bytes = 0;
  uint64_t data_bytes = 0;
  std::memcpy(&block_bytes, input.data() + at + 12, sizeof block_bytes);
  std::memcpy(&data_bytes, input.data() + at + 16, sizeof data_bytes);
  return block_bytes >= model::kMinBlockBytes && data_bytes / block_bytes > kMostBlocks;
}

}  // namespace lockstep::fuzz

// A codec level that exists in tests only, above all that there are and that will be added: what is written against it
// holds for the next level too.
#pragma once

#include <zstd.h>

#include "common/payload/block_codec.h"

namespace lockstep::payload {

// zstd's slowest search, which finds short repeats; the entropy stage of kCompact leaves them.
inline bool CompressHard(std::span<const uint8_t> heads, Bytes& frame) {
  frame.resize(ZSTD_compressBound(heads.size()));
  const size_t bytes = ZSTD_compress(frame.data(), frame.size(), heads.data(), heads.size(), 19);
  if (ZSTD_isError(bytes) || bytes >= heads.size()) return false;
  frame.resize(bytes);
  return true;
}

inline constexpr CodecLevel::Row kHardRow = {.number = 255,
                                             .name = "hard",
                                             .compress_heads = &CompressHard,
                                             .cost = {.bytes = 1.15, .shared_ns = 0.2, .least_ns = 10}};
inline constexpr CodecLevel kHard(kHardRow);

// Changes of one unit up or down in words of three that repeat in no order: what kHard gains on.
inline Changes RepetitiveChanges(size_t count) {
  Changes changes;
  uint32_t random = 1;
  uint32_t position = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % 3 == 0) random = random * 1664525 + 1013904223;
    const uint32_t word = random >> 28;
    position += 1 + (word * 7 + static_cast<uint32_t>(i % 3) * 5) % 6;
    changes.positions.push_back(position);
    changes.steps.push_back((word + i % 3) % 2 == 0 ? 1 : 0xffff);
  }
  return changes;
}

}  // namespace lockstep::payload

// How the changes of one block are coded (FORMAT.md, "Blocks").
//
// A change is an element's position in its block and its step: new − old of the raw bits, mod 2^(8·unit). Steps make a
// delta exact for every bit pattern, small for real training, and its own inverse.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/payload/codec_level.h"

namespace lockstep::payload {

enum class Codec : uint8_t {
  kRaw = 1,     // the block's new bytes
  kSparse = 2,  // gaps and steps of the changed elements
};

// Changed elements of one block: positions strictly rising, steps non-zero and below 2^(8·unit), as many of one as of
// the other. A scratch object: reuse one per thread to keep its memory.
struct Changes {
  std::vector<uint32_t> positions;
  std::vector<uint64_t> steps;

  size_t size() const { return positions.size(); }
  void Clear() {
    positions.clear();
    steps.clear();
  }
};

// Changes in memory that the caller owns.
struct ChangeView {
  std::span<const uint32_t> positions;
  std::span<const uint64_t> steps;

  ChangeView(std::span<const uint32_t> positions, std::span<const uint64_t> steps)
      : positions(positions), steps(steps) {}
  ChangeView(const Changes& changes) : positions(changes.positions), steps(changes.steps) {}  // NOLINT: implicit

  size_t size() const { return positions.size(); }
};

// Appends the kSparse coding of `changes` to `out`. REQUIRES the invariants of Changes, at least one change, unit in
// {1,2,4,8}.
void EncodeSparse(const ChangeView& changes, uint32_t unit, CodecLevel level, Bytes& out);

// Replaces `changes` by what `coded` says. kCorrupt, saying why, for anything that is no coding of changes of a
// block of `block_bytes`: truncated or trailing bytes, a position past the end, a zero step, impossible counts.
// Allocates no more than a block's worth whatever the input says.
Status DecodeSparse(ByteView coded, uint32_t unit, size_t block_bytes, Changes& changes);

// The first half of it, for callers that take the values from elsewhere: which elements change. The steps are not read,
// so what is wrong with them is not found.
Status DecodePositions(ByteView coded, uint32_t unit, size_t block_bytes, std::vector<uint32_t>& positions);

}  // namespace lockstep::payload

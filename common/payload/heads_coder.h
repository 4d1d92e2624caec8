// The entropy stage: the heads of a block (FORMAT.md, "Levels") as a zstd frame.
//
// zstd is used for its Huffman coder; heads have hardly any matches to find, so it is set to search little. Contexts
// are kept one per thread: their set-up would cost more than a block.
#pragma once

#include <span>

#include "common/base/bytes.h"

namespace lockstep::payload {

// Replaces `frame` by the coded heads. False: they do not get smaller, and `frame` is of no use.
bool CompressHeads(std::span<const uint8_t> heads, Bytes& frame);

// Fills `heads` with what `frame` holds. False unless that is exactly so many heads.
bool DecompressHeads(ByteView frame, std::span<uint8_t> heads);

}  // namespace lockstep::payload

// The entropy stage: the control bytes of a block (FORMAT.md, "Levels") as a zstd frame.
//
// zstd is used for its Huffman coder; control bytes have hardly any matches to find, so it is set to search little.
// Contexts are kept one per thread: their set-up would cost more than a block.
#pragma once

#include <span>

#include "common/base/bytes.h"

namespace lockstep::payload {

// Replaces `frame` by the coded control bytes. False: they do not get smaller, and `frame` is of no use.
bool CompressControls(std::span<const uint8_t> controls, Bytes& frame);

// Fills `controls` with what `frame` holds. False unless that is exactly so many control bytes.
bool DecompressControls(ByteView frame, std::span<uint8_t> controls);

}  // namespace lockstep::payload

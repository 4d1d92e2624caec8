// Which codec level brings a delta over a link soonest: the time to encode, send and decode it, at either level.
#pragma once

#include <cstdint>

#include "common/payload/block_codec.h"

namespace lockstep {

// `link_bytes_per_s` is what the receiver's lanes last carried together; 0 is not known, and taken for a fast link:
// what a first delta loses there is little, and the next one knows. `density`: the share of elements that the last
// delta changed; 0 is not known.
CodecLevel ChooseLevel(uint64_t link_bytes_per_s, double density);

}  // namespace lockstep

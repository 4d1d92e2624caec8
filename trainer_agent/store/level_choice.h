// Which codec level brings a delta over a link soonest: encoded, sent and decoded.
#pragma once

#include <cstdint>
#include <span>

#include "common/payload/codec_level.h"

namespace lockstep::store {

// `link_bytes_per_s` is what the receiver's lanes last carried together; 0 is not known, and taken for a fast link:
// what a first delta loses there is little, and the next one knows. `density`: the share of elements that the last
// delta changed; 0 is not known. `levels`, at least one, rise; of equally good ones the first is chosen.
payload::CodecLevel ChooseLevel(uint64_t link_bytes_per_s, double density,
                                std::span<const payload::CodecLevel> levels = payload::CodecLevel::All());

}  // namespace lockstep::store

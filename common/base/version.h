// The release of this build. The file VERSION has it; tests/release links builds that have another.
#pragma once

#include <string_view>

namespace lockstep {

// A literal: it ends with a zero.
extern const std::string_view kVersion;

}  // namespace lockstep

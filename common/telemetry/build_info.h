// Which build this is.
#pragma once

#include <string_view>

namespace lockstep::telemetry {

// Semantic version of the project.
inline constexpr std::string_view kProjectVersion = "0.1.0";

// The git revision this was built from, with "-dirty" when files were changed; "unknown" outside a checkout
// and in tests.
std::string_view BuildRevision();

}  // namespace lockstep::telemetry

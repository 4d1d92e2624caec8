// Which build this is.
#pragma once

#include <string_view>

namespace lockstep::telemetry {

// The git revision this was built from, with "-dirty" when files were changed; "unknown" outside a checkout
// and in tests.
std::string_view BuildRevision();

}  // namespace lockstep::telemetry

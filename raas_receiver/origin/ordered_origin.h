// Several origins of the same model as one, in order of preference: an agent, say, and a log for when it is away.
#pragma once

#include <memory>
#include <vector>

#include "raas_receiver/origin/origin.h"

namespace lockstep::origin {

// All are watched. The first of them that answers is in use: by pulls that are opened, for what is reported, and by
// name. One is used only where what it has was committed no earlier than what was announced last, and than what is
// held, at `held_unix_ns` (0: nothing is); but an agent that is first is always right. REQUIRES one at least.
std::unique_ptr<Origin> NewOrderedOrigin(std::vector<std::unique_ptr<Origin>> origins, int64_t held_unix_ns);

}  // namespace lockstep::origin

// Internal to the plan: which parameters of a rank share memory.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "raas_receiver/engine/placement/description/description.h"

namespace lockstep::engine {

// Whether each parameter repeats another one: at the same place, of the same content (a tied head). kBadData names two
// parameters that have a byte in common otherwise. REQUIRES CheckPlace for every parameter.
Result<std::vector<bool>> FindTied(const RankDescription& rank);

}  // namespace lockstep::engine

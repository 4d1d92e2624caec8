// Internal to ctl/changes. A picture of what versions changed: a row for each layer, and for each kind of tensor a
// column for each version. The darker a cell, the larger the share of its elements that changed; what did not change is
// white, and what has NaN or Inf is red.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "proto/lockstep/v1/agent.pb.h"

namespace lockstep::ctl {

// An SVG. kUsage: over 200,000 cells.
Result<std::string> HeatMap(const std::string& model, const std::vector<v1::VersionChanges>& versions);

}  // namespace lockstep::ctl

// `lockstepctl plan`, which asks no daemon.
#pragma once

#include "common/base/status.h"
#include "ctl/output/output.h"
#include "ctl/plan/options.h"

namespace lockstep::ctl {

// Compiles the plan and prints it. kBadData for a configuration, topology or sheet that is wrong, kNotFound and kIo for
// a file that cannot be read, naming it; kUsage for a rank that there is not.
Status RunPlanCommand(const PlanOptions& options, const Output& output);

}  // namespace lockstep::ctl

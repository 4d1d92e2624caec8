// A demo trainer's life: make or load the model, then train and publish until the steps are done.
#pragma once

#include "common/base/status.h"
#include "deploy/demo_trainer/options.h"

namespace lockstep::demo {

// Prints one JSON object per published version to stdout:
//   {"version", "step", "changed_elements", "density", "step_ms", "blocked_ms", "sha256"}
// with the elements that changed against the version before, the time of the whole pass, the part of it spent in calls
// of the export plugin, and, when due, the digest of the published data section.
Status Run(const Options& options);

}  // namespace lockstep::demo

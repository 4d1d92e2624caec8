// What the command line of lockstepctl asks for.
#pragma once

#include <iosfwd>
#include <optional>

#include "common/base/status.h"
#include "ctl/daemon/options.h"
#include "ctl/plan/options.h"
#include "ctl/timeline/options.h"

namespace lockstep::ctl {

struct Invocation {
  std::optional<PlanOptions> plan;          // set: this is what is wanted, which asks no daemon
  std::optional<TimelineOptions> timeline;  // set: this is what is wanted, of the daemons that it names
  DaemonOptions daemon;                     // else this, of one daemon
  bool json = false;
  bool quiet = false;
};

// The invocation, or nothing when --help or --version was asked for and has been printed to `out`. kUsage otherwise.
// Only `timeline` takes several receivers. Without --agent and --receiver, the environment's LOCKSTEP_AGENT and
// LOCKSTEP_RECEIVER say where to go.
Result<std::optional<Invocation>> ParseInvocation(int argc, const char* const* argv, std::ostream& out);

}  // namespace lockstep::ctl

#include "ctl/commands.h"

#include "ctl/daemon/commands.h"
#include "ctl/output/output.h"
#include "ctl/plan/command.h"
#include "ctl/timeline/command.h"

namespace lockstep::ctl {

Status RunCommand(const Invocation& invocation, std::ostream& out) {
  const Output output{out, invocation.json, invocation.quiet};
  if (invocation.plan) return RunPlanCommand(*invocation.plan, output);
  if (invocation.timeline) return RunTimelineCommand(*invocation.timeline, output);
  return RunDaemonCommand(invocation.daemon, output);
}

}  // namespace lockstep::ctl

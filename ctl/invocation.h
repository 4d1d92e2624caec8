// Parses the command line of lockstepctl, and carries it out.
#pragma once

#include <iosfwd>
#include <optional>
#include <variant>

#include "common/base/status.h"
#include "ctl/daemon/commands.h"
#include "ctl/doctor/command.h"
#include "ctl/log/command.h"
#include "ctl/plan/command.h"
#include "ctl/timeline/command.h"

namespace lockstep::ctl {

struct Invocation {
  std::variant<DaemonOptions, PlanOptions, TimelineOptions, LogOptions, DoctorOptions> wanted;
  bool json = false;
  bool quiet = false;
};

// The invocation, or nothing when --help or --version was asked for and has been printed to `out`. kUsage otherwise.
// Only `timeline` takes several receivers. Without --agent and --receiver, the environment's LOCKSTEP_AGENT and
// LOCKSTEP_RECEIVER say where to go; without these, the sockets of this host's daemons: the agent's, where it has one.
Result<std::optional<Invocation>> ParseInvocation(int argc, const char* const* argv, std::ostream& out);

// Carries out `invocation` and prints its answer to `out`. Some answers of a daemon are errors too: kCorrupt for a
// digest that differs (naming tensors), kUnavailable for a daemon that is not serving, kAborted for a pull whose
// version was not taken.
Status RunCommand(const Invocation& invocation, std::ostream& out);

}  // namespace lockstep::ctl

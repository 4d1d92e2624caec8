// What the command line of lockstepctl asks for.
#pragma once

#include <chrono>
#include <iosfwd>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "ctl/plan_options.h"
#include "ctl/timeline_options.h"

namespace lockstep {

enum class Command { kStatus, kVersions, kPull, kVerify, kWatch, kLayout, kRollback, kHealth };
enum class Daemon { kAgent, kReceiver };

struct Invocation {
  std::optional<PlanOptions> plan;          // set: this is what is wanted, which asks no daemon
  std::optional<TimelineOptions> timeline;  // set: this is what is wanted, of the daemons that it names
  Command command = Command::kStatus;
  Daemon daemon = Daemon::kAgent;           // whom it goes to
  std::string address;                      // of that daemon
  std::optional<std::string> verify_agent;  // the agent to compare a receiver with; else the receiver's own
  std::string model;                        // empty: the only one there is
  std::string health_service;               // full name; empty: the server as a whole
  bool force_full = false;
  uint64_t count = 0;                                // of records to watch; 0: no end
  std::optional<std::chrono::milliseconds> timeout;  // nothing: the command's default; watch has none
  bool json = false;
  bool quiet = false;
};

// The invocation, or nothing when --help or --version was asked for and has been printed to `out`. kUsage otherwise.
// Only `timeline` takes several receivers. Without --agent and --receiver, the environment's LOCKSTEP_AGENT and
// LOCKSTEP_RECEIVER say where to go.
Result<std::optional<Invocation>> ParseInvocation(int argc, const char* const* argv, std::ostream& out);

}  // namespace lockstep

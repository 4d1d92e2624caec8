// `lockstepctl timeline`, which asks an agent and any number of receivers.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/tls.h"
#include "ctl/output/output.h"

namespace CLI {
class App;
}

namespace lockstep::ctl {

struct TimelineOptions {
  std::string agent;                                 // empty: the one that the first receiver follows
  std::vector<std::string> receivers;                // none: the agent's side alone
  rpc::TlsOptions tls;                               // that daemons are spoken to by
  std::string model;                                 // empty: every one
  uint64_t version = 0;                              // 0: the newest `last`
  uint64_t last = 3;                                 // versions of each model; 0: all that daemons remember
  std::optional<std::chrono::milliseconds> timeout;  // of each call; nothing: the default
  std::string out;                  // file for the trace; empty: none is written; "-": the answer is the trace
  std::string format = "perfetto";  // of the trace, or "otlp"
};

// REQUIRES options to outlive `command`.
void AddTimelineOptions(CLI::App& command, TimelineOptions& options);

// Fills in the daemons to ask, from the command line's --agent (empty: not given) and --receivers and then the
// environment. kUsage for an address that is none, and for --json beside a trace on standard output.
Status FinishTimelineOptions(const std::string& agent, const std::vector<std::string>& receivers, bool json,
                             TimelineOptions& options);

// Every daemon must answer: kUnavailable, kDeadline or kProtocol names the one that does not. kNotFound when none
// remembers a span of what is wanted; errors of WriteTextFile for the trace.
Status Run(const TimelineOptions& options, const Output& output);

}  // namespace lockstep::ctl

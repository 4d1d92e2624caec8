// `lockstepctl timeline`, which asks an agent and any number of receivers.
#pragma once

#include "common/base/status.h"
#include "ctl/output/output.h"
#include "ctl/timeline/options.h"

namespace lockstep::ctl {

// Every daemon must answer: kUnavailable, kDeadline or kProtocol names the one that does
// not. kNotFound when none remembers a span of what is wanted; errors of WriteTextFile for the trace.
Status RunTimelineCommand(const TimelineOptions& options, const Output& output);

}  // namespace lockstep::ctl

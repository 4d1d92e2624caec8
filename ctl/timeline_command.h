// Internal to ctl: `lockstepctl timeline`, which asks an agent and any number of receivers.
#pragma once

#include "common/base/status.h"
#include "ctl/invocation.h"
#include "ctl/output.h"

namespace lockstep {

// REQUIRES invocation.timeline. Every daemon must answer: kUnavailable, kDeadline or kProtocol names the one that does
// not. kNotFound when none remembers a span of what is wanted; errors of WriteTextFile for the trace.
Status RunTimelineCommand(const Invocation& invocation, const Output& output);

}  // namespace lockstep

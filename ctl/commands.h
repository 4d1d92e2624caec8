// What lockstepctl does.
#pragma once

#include <iosfwd>

#include "common/base/status.h"
#include "ctl/invocation.h"

namespace lockstep::ctl {

// Carries `invocation` out and prints its answer to `out`. A daemon that answers, but not what one hopes for, is an
// error too: kCorrupt for a digest that differs (naming tensors), kUnavailable for a daemon that is not serving,
// kAborted for a pull whose version was not taken.
Status RunCommand(const Invocation& invocation, std::ostream& out);

}  // namespace lockstep::ctl

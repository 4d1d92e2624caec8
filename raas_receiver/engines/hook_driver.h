// The driver of an engine that a command controls, whatever it is.
#pragma once

#include "raas_receiver/engines/driver.h"

namespace lockstep::engines {

// Load and Resume run the command by /bin/sh, with LOCKSTEP_MODEL, LOCKSTEP_RUN (hex), LOCKSTEP_VERSION, LOCKSTEP_PATH
// (the published directory) and LOCKSTEP_MODE in its environment. Exit status 0 means that the engine serves the
// version, any other that it serves what it served before: tried again, then reported. After an attempt that was
// killed, or whose command died of a signal (which a shell also reports as 128 and its number), nobody knows.
//
// Errors are kAborted for an exit status or a signal and kDeadline for a timeout, with the end of the command's output.
// Pause does nothing, because a command is run once a version is there. Nobody can distinguish a command's engine from
// one that was restarted: StillServes is always true. Cancel kills a running command.
Result<std::unique_ptr<EngineDriver>> NewHookDriver(const DriverKind& kind, EngineOptions options);

}  // namespace lockstep::engines

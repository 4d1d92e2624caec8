// The commands that one daemon answers.
#pragma once

#include <chrono>

#include "common/base/status.h"
#include "ctl/daemon/options.h"
#include "ctl/output/output.h"

namespace lockstep::ctl {

inline constexpr std::chrono::milliseconds kQuickTimeout{10'000};  // for what a daemon knows
inline constexpr std::chrono::milliseconds kWorkTimeout{600'000};  // for what it has to do first

// Calls the daemon that `options` names and prints its answer. Errors are RunCommand's (ctl/commands.h).
Status RunDaemonCommand(const DaemonOptions& options, const Output& output);

}  // namespace lockstep::ctl

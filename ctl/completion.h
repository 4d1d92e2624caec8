// `lockstepctl completion SHELL`: what a shell needs to complete the tool's commands and options.
#pragma once

#include <string>

#include "common/base/status.h"

namespace CLI {
class App;
}

namespace lockstep::ctl {

// A script for "bash", "zsh" or "fish", of the commands and options that `app` has. kUsage for another shell.
Result<std::string> CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace lockstep::ctl

// Where engine ranks attach: a unix socket, and which model's targets each one is for.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/os/unix_server.h"
#include "raas_receiver/targets/engine_targets.h"

namespace lockstep::targets {

// Where a rank of a model is to attach, or why it is refused.
using FindTargets = std::function<Result<std::shared_ptr<EngineTargets>>(const RankConnection& rank)>;

// Listens at `path` and gives each rank to the targets that its model's function finds, which outlive the server. A
// peer of another user than this process' or root's is refused, as is a model that no session follows, and one that has
// not sent ATTACH within `attach_timeout` is dropped. When the server goes no more ranks are taken; those attached
// stay. Errors as UnixListener::Create.
Result<std::unique_ptr<os::UnixServer>> StartTargetServer(
    const std::string& path, std::map<std::string, FindTargets> models,
    std::chrono::milliseconds attach_timeout = std::chrono::seconds(10));

}  // namespace lockstep::targets

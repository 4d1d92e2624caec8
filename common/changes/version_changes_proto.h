// What a version changed, as it is told: for the agent and for `lockstepctl log diff`.
#pragma once

#include <string>

#include "common/base/ids.h"
#include "common/changes/version_changes.h"
#include "proto/lockstep/v1/agent.pb.h"

namespace lockstep::changes {

// All tensors together.
v1::Change SumOf(const VersionChanges& changes);

v1::VersionChanges ToProto(const model::ModelLayout& layout, const RunId& run, const std::string& label,
                           const VersionChanges& changes);

}  // namespace lockstep::changes

// Waiting until a version is compared with the one before. For AgentService, and for trainers, which have no protos.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "proto/lockstep/v1/agent.pb.h"
#include "trainer_agent/run/version_catalog.h"

namespace lockstep::serve {

// Waits until the version is compared, until the request's timeout or 10 s. Errors are those of the call
// (proto/lockstep/v1/agent.proto); kCancelled once `gone` says that the caller no longer waits.
Result<v1::VersionChanges> AwaitChanges(const run::VersionCatalog& catalog, const v1::AwaitChangesRequest& request,
                                        const std::function<bool()>& gone);

// AwaitChanges with request and answer as JSON (common/rpc/message_json.h).
Result<std::string> AwaitChangesJson(const run::VersionCatalog& catalog, std::string_view request,
                                     const std::function<bool()>& gone);

}  // namespace lockstep::serve

// Where the sources of a sync are made: all that knows which kinds of them there are.
#pragma once

#include <memory>
#include <vector>

#include "raas_receiver/pull/block_source.h"
#include "raas_receiver/session/plan.h"
#include "raas_receiver/session/sync_context.h"

namespace lockstep::session {

// The sources that `plan` grants and that can be reached, in the order in which they are to be asked. A source of
// another kind is one more line in here. What `context` refers to, and `agent`, which is called for them, outlive them.
std::vector<std::unique_ptr<pull::BlockSource>> OpenSources(const SyncContext& context, AgentClient& agent,
                                                            const Plan& plan, const Layout& layout);

}  // namespace lockstep::session

// A model that is published in parts as one: each agent has a part (common/model/parts.h), and the receiver follows the
// whole.
//
// The whole has a joined layout (common/model/layout.h), so that its blocks are those of the parts. A version of the
// whole is the versions of all parts that have its run and its number. The trainer gives all parts one run, and a
// number of a run to no other bytes. A pull brings all parts to one version: the newest that all of them reach. The
// receiver makes that version current as it makes any version, so that no mixture is ever seen.
#pragma once

#include <memory>
#include <vector>

#include "raas_receiver/origin/origin.h"

namespace lockstep::origin {

// `agents` in any order: one for each part or, with `some_parts`, for some parts, which are followed without the
// others. REQUIRES origins of NewAgentOrigin, one at least.
std::unique_ptr<Origin> NewPartedOrigin(std::vector<std::unique_ptr<Origin>> agents, bool some_parts);

}  // namespace lockstep::origin

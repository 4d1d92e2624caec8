// Protocol messages as people read them. Each ends with a line break.
#pragma once

#include <string>

#include "common/model/layout.h"
#include "ctl/output/json.h"
#include "proto/lockstep/v1/agent.pb.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace lockstep::ctl {

std::string StatusText(const v1::AgentStatus& status);
std::string StatusText(const v1::ReceiverStatus& status);

// A daemon's versions, and the deltas that lead between them, as a table and as JSON:
// [{"model", "run", "version", "digest", "deltas": [...]}] of an agent,
// [{"model", "newest_version", "current": held, "digest", "previous": held}] of a receiver.
std::string VersionsText(const v1::AgentStatus& status);
std::string VersionsText(const v1::ReceiverStatus& status);

Json VersionsJson(const v1::AgentStatus& status);
Json VersionsJson(const v1::ReceiverStatus& status);

std::string LayoutText(const model::ModelLayout& layout);

// The message on one line, for streams.
std::string LineOf(const v1::VersionEvent& event);
std::string LineOf(const v1::SyncRecord& record);

}  // namespace lockstep::ctl

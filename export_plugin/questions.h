// What a trainer's process asks the agent: what lockstep_wait_served and lockstep_wait_changes do.
#pragma once

#include <string>

#include "common/base/status.h"
#include "export_plugin/lockstep.h"

namespace lockstep::abi {

// Errors as lockstep_wait_served. `*answer` is the agent's last one, as JSON; empty: it gave none.
Status WaitServed(const lockstep_served_query& query, std::string* answer);
// Likewise.
Status WaitChanges(const lockstep_changes_query& query, std::string* answer);

}  // namespace lockstep::abi

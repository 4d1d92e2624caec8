// What lockstep_wait_served does.
#pragma once

#include <string>

#include "common/base/status.h"
#include "export_plugin/lockstep.h"

namespace lockstep::abi {

// Errors as lockstep_wait_served. `*answer` is the agent's last one, as JSON; empty: it gave none.
Status WaitServed(const lockstep_served_query& query, std::string* answer);

}  // namespace lockstep::abi

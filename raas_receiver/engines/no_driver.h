// The driver where nobody is notified: engines open the published directory whenever they like, or their memory is all
// there is.
#pragma once

#include "raas_receiver/engines/driver.h"

namespace lockstep::engines {

// Every version is served at once.
Result<std::unique_ptr<EngineDriver>> NewNoDriver(const DriverKind& kind, EngineOptions options);

}  // namespace lockstep::engines

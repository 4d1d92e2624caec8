// The driver of a vLLM server. It needs VLLM_SERVER_DEV_MODE=1 in its environment.
#pragma once

#include <memory>

#include "raas_receiver/engines/driver.h"

namespace lockstep::engines {

// Directory: /pause, /collective_rpc of reload_weights with the path, /reset_prefix_cache, /update_weight_version,
// /resume. In place: the same without the reload.
//
// Pause modes: "keep" (the default: running requests wait, and are computed again with the new weights), "wait" (they
// end first) and "abort" (they end with what they have). After "wait" and "abort" new requests are refused meanwhile.
Result<std::unique_ptr<EngineDriver>> NewVllmDriver(const DriverKind& kind, EngineOptions options);

}  // namespace lockstep::engines

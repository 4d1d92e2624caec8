// The driver of an SGLang server.
#pragma once

#include <memory>

#include "raas_receiver/engines/driver.h"

namespace lockstep::engines {

// Directory: /pause_generation, /flush_cache, /update_weights_from_disk with flush_cache false, /flush_cache once,
// /update_weight_version, /continue_generation. In place: the same without the update.
//
// Its answers are those of rank 0 of the first data-parallel replica: that a read failed on another rank, or that
// another replica still runs something, it does not say. It must have one HTTP worker (--tokenizer-worker-num 1, the
// default): of several, one would receive pauses and names, and any would answer.
//
// Pause modes: "retract" (the default: running requests wait, and are computed again with the new weights) and "abort"
// (they end with what they have). "in_place" keeps the old cache under them, which no flush can drop: refused.
Result<std::unique_ptr<EngineDriver>> NewSglangDriver(const DriverKind& kind, EngineOptions options);

}  // namespace lockstep::engines

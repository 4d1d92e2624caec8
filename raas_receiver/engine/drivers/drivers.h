// The drivers of all kinds but "none", for the table in driver_kind.cc.
#pragma once

#include <memory>

#include "raas_receiver/engine/drivers/driver.h"

namespace lockstep::engine {

// ---- a command that controls an engine, whatever it is ----

// Load and Resume run the command by /bin/sh, with LOCKSTEP_MODEL, LOCKSTEP_RUN (hex), LOCKSTEP_VERSION, LOCKSTEP_PATH
// (the published directory), LOCKSTEP_MODE and LOCKSTEP_LABEL in its environment. Exit status 0 means that the engine
// serves the version. Any other means that it serves what it served before: the driver tries again, then reports it.
// When the driver kills the command, or a signal does (a shell reports that as 128 and its number), the driver does not
// know what the engine serves. An attempt has the load timeout.
//
// kConfig: the command's program is not there or may not be executed. The driver looks at the command's first word,
// but not when that has a variable, a quote or an assignment: only the shell understands those.
//
// Errors are kAborted for an exit status or a signal and kDeadline for a timeout, with the end of the command's output.
// Pause does nothing, because a command is run once a version is there. A command's engine cannot be distinguished from
// one that was restarted: StillServes never says. Cancel kills a running command.
Result<std::unique_ptr<EngineDriver>> NewHookDriver(const DriverKind& kind, EngineOptions options);

// ---- a server that is asked of which kind it is ----

// SGLang or vLLM. Until it answers, calls are kUnavailable or what the HTTP call says, and nothing was changed.
Result<std::unique_ptr<EngineDriver>> NewAskedDriver(const DriverKind& kind, EngineOptions options);

// ---- an SGLang server ----

// Directory: /pause_generation, /flush_cache, /update_weights_from_disk with flush_cache false, /weights_checker where
// checksums are asked for, /flush_cache once, /update_weight_version, /continue_generation. In place: without the
// update, and with /begin_weight_update after the pause and /end_weight_update before the end, where the server has
// them (0.5.23). A load has no session: it would end with all weights packed a second time.
//
// Its answers are those of rank 0 of the first data-parallel replica: that a read failed on another rank, or that
// another replica still runs something, it does not say. It must have one HTTP worker (--tokenizer-worker-num 1, the
// default): of several, one would receive pauses and names, and any would answer.
//
// Pause modes: "retract" (the default: running requests wait, and are computed again with the new weights) and "abort"
// (they end with what they have). "in_place" keeps the old cache under them, which no flush can drop: refused.
Result<std::unique_ptr<EngineDriver>> NewSglangDriver(const DriverKind& kind, EngineOptions options);

// ---- a vLLM server, with VLLM_SERVER_DEV_MODE=1 in its environment ----

// Directory: /pause, /collective_rpc of reload_weights with the path, /weight_checker where checksums are asked for,
// /reset_prefix_cache, /update_weight_version, /resume. In place: the same without the reload.
//
// Pause modes: "keep" (the default: running requests wait, and are computed again with the new weights), "wait" (they
// end first) and "abort" (they end with what they have). New requests wait meanwhile.
Result<std::unique_ptr<EngineDriver>> NewVllmDriver(const DriverKind& kind, EngineOptions options);

}  // namespace lockstep::engine

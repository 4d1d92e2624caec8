// The copy engine of a process that reaches no GPU.
#pragma once

#include <memory>

#include "export_plugin/exporter/copy_engine.h"

namespace lockstep::exporter {

// NewHostCopyEngine() that asks the kernel about every memory before it touches it: a GPU's, which the CPU cannot read,
// is an error that carries `trouble`, not the end of the process. REQUIRES !trouble.ok().
Result<std::unique_ptr<CopyEngine>> NewHostOnlyEngine(WorkerPool* pool, Status trouble);

}  // namespace lockstep::exporter

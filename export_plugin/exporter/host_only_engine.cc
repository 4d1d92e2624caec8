// NewCopyEngine() of builds without CUDA.
#include "export_plugin/exporter/copy_engine.h"

namespace lockstep::exporter {

const bool kCopiesFromGpu = false;

Result<std::unique_ptr<CopyEngine>> NewCopyEngine(WorkerPool* pool) {
  return NewHostCopyEngine(pool);
}

}  // namespace lockstep::exporter

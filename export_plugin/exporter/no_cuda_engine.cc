// NewCopyEngine() of builds without CUDA.
#include "export_plugin/exporter/host_only_engine.h"

namespace lockstep::exporter {

const bool kBuiltWithCuda = false;

Status GpuTrouble() {
  return {ErrorCode::kState,
          "this liblockstep.so was built without CUDA: build it with --config=cuda (deploy/wheel.sh --cuda)"};
}

Result<std::unique_ptr<CopyEngine>> NewCopyEngine(WorkerPool* pool) {
  return NewHostOnlyEngine(pool, GpuTrouble());
}

}  // namespace lockstep::exporter

// NewCopyEngine() and NewDeviceBuckets() of builds without CUDA.
#include "export_plugin/exporter/bucket_memory.h"
#include "export_plugin/exporter/copy_engine.h"

namespace lockstep::exporter {

const bool kBuiltWithCuda = false;

Status GpuTrouble() {
  return {ErrorCode::kState,
          "this liblockstep.so was built without CUDA: build it with --config=cuda (deploy/wheel.sh --cuda)"};
}

Result<std::unique_ptr<CopyEngine>> NewCopyEngine(WorkerPool* pool) {
  return NewCheckedHostEngine(pool, GpuTrouble());
}

Result<std::unique_ptr<BucketMemory>> NewDeviceBuckets(int, uint64_t) {
  return GpuTrouble();
}

}  // namespace lockstep::exporter

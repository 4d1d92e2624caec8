// OpenCudaMemory() of builds without CUDA.
#include "raas_receiver/placement/memory/target_memory.h"

namespace lockstep::placement {

const bool kOpensCudaMemory = false;

Status LostGpu() {
  return OkStatus();
}

Result<std::unique_ptr<TargetMemory>> OpenCudaMemory(const MemoryDescription& memory) {
  return Status(
      ErrorCode::kState,
      "GPU " + memory.device + ": this build reaches no GPU memory; take one that was built with --config=cuda");
}

}  // namespace lockstep::placement

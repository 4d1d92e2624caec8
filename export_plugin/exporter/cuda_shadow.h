// The shadow of a share whose tensors are on one GPU.
#pragma once

#include <memory>

#include "export_plugin/exporter/cuda_lane.h"
#include "export_plugin/exporter/shadow.h"

namespace lockstep::exporter {

// Takes plan.bytes().all() of the device's memory, and as much pinned memory of the host as two batches of changes
// need, until it goes. REQUIRES `pool` (null: only the caller's thread) and `pinned` to outlive it.
// kResourceExhausted: memory is missing; kIo: CUDA fails otherwise.
Result<std::unique_ptr<Shadow>> NewCudaShadow(ShadowPlan plan, int device, WorkerPool* pool,
                                              const PinnedRanges* pinned);

}  // namespace lockstep::exporter

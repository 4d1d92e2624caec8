// Lowering: chunks of the plan into copies of bytes from this rank's tensors.
#pragma once

#include <span>
#include <vector>

#include "export_plugin/exporter/chunk.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/exporter/local_tensor.h"

namespace lockstep {

// A copy from local tensor `local`; source offsets count from its address.
struct LocalCopy {
  uint32_t local = 0;
  StridedCopy copy;
  ElementConversion conversion = ElementConversion::kNone;
};

// What becomes of a local tensor's elements in a HuggingFace tensor. kBadData, naming both, where the dtypes differ and
// this is not F32 to BF16 with leave to convert.
Result<ElementConversion> ConversionOf(const LocalTensor& local, const TensorMeta& tensor);

// Copies that are told together: large enough for the telling to cost nothing, small enough for the agent's diff to run
// beside the copying.
struct Batch {
  size_t copies_end = 0;  // in Share::copies; begins where the one before ends
  size_t ranges_end = 0;  // in Share::ranges
  uint64_t bytes = 0;
};

struct Share {
  std::vector<LocalCopy> copies;  // into the data section
  std::vector<StridedRange> ranges;
  std::vector<Batch> batches;
  uint64_t bytes = 0;
};

// What a rank beside the agent writes of its own.
struct LocalShare {
  Share changing;
  Share frozen;
};

// kBadData as ConversionOf().
Result<LocalShare> LowerShare(const TrainingModel& model, std::span<const Chunk> chunks,
                              std::span<const LocalTensor> locals, const LocalsBySource& by_source);

// `copies` with the tensors' present addresses, relative to `target`. kBadData names a tensor without an address.
Status Place(std::span<const LocalCopy> copies, std::span<const LocalTensor> locals, std::byte* target,
             std::vector<PlacedCopy>& placed);

}  // namespace lockstep

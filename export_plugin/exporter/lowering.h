// Lowering: chunks of the plan into copies of bytes from this rank's tensors.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "export_plugin/exporter/chunk.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/exporter/local_tensor.h"

namespace lockstep::exporter {

// A copy from local tensor `local`; source offsets count from its address.
struct LocalCopy {
  uint32_t local = 0;
  layout::StridedCopy copy;
  ElementConversion conversion = ElementConversion::kNone;
};

// How a local tensor's elements are converted for a HuggingFace tensor. kBadData, naming both, when the dtypes differ
// and this is not F32 to BF16 with leave to convert.
Result<ElementConversion> ConversionOf(const LocalTensor& local, const model::TensorMeta& tensor);

// Copies that are reported together: enough that a report costs nothing, and few enough that the agent's diff runs
// while the next batch is copied.
struct CopyBatch {
  size_t copies_end = 0;  // in CopyList::copies; begins where the one before ends
  size_t ranges_end = 0;  // in CopyList::ranges
  uint64_t bytes = 0;
};

// In the order in which they run.
struct CopyList {
  std::vector<LocalCopy> copies;  // into the data section
  std::vector<StridedRange> ranges;
  std::vector<CopyBatch> batches;
  uint64_t bytes = 0;

  std::span<const StridedRange> RangesOf(size_t batch) const {
    const size_t begin = batch == 0 ? 0 : batches[batch - 1].ranges_end;
    return std::span(ranges).subspan(begin, batches[batch].ranges_end - begin);
  }
};

// The copies of a rank on the agent's host from its own tensors.
struct OwnCopies {
  CopyList changing;
  CopyList frozen;
};

// kBadData as ConversionOf().
Result<OwnCopies> LowerCopies(const layout::TrainingModel& model, std::span<const Chunk> chunks,
                              std::span<const LocalTensor> locals, const LocalsBySource& by_source);

// `copies` with the tensors' present addresses, relative to `target`. kBadData names a tensor without an address.
Status Place(std::span<const LocalCopy> copies, std::span<const LocalTensor> locals, std::byte* target,
             std::vector<PlacedCopy>& placed);

// Runs the batches of `list` from `locals` into `data`, and calls `report` with the number of each once it is in place.
// While a batch is reported, the next ones are on their way. After an error nothing is under way any more.
Status RunBatches(CopyEngine& engine, const CopyList& list, std::span<const LocalTensor> locals, std::byte* data,
                  const std::function<Status(size_t batch)>& report);

}  // namespace lockstep::exporter

// LocalTensor: a training tensor's memory on this rank, and the checks that stand before every use of it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/layout/strided_copy.h"
#include "common/layout/training_model.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/plan/shard_description.h"

namespace lockstep::exporter {

// In the order of the rank's description.
struct LocalTensor {
  std::string name;  // as in the description
  model::DType dtype = model::DType::kBF16;
  layout::Extents shape;
  layout::Extents strides;  // in elements; must not overlap
  const void* address = nullptr;
  bool convert = false;  // allow F32 to be exported as BF16, rounded to nearest even; else dtypes must match
};

// The descriptions of all ranks. kBadData: a text is no description; the error names its rank.
Result<std::vector<plan::ShardDescription>> ParseDescriptions(std::span<const std::string> texts);

// Whether `locals` are what the rank's own description says, and lie in memory as tensors can. kBadData names the first
// that is not, and both sides. Addresses are not checked.
Status CheckLocals(std::span<const LocalTensor> locals, const plan::ShardDescription& description);

// By source of the model, the local tensors of a rank that hold it: equal copies. None where the rank has none.
using LocalsBySource = std::vector<std::vector<uint32_t>>;
LocalsBySource LocalsOfRank(const layout::TrainingModel& model, uint32_t rank);

// Whether one of them, at its present address, is in a GPU's memory.
bool AnyOnDevice(CopyEngine& engine, std::span<const LocalTensor> locals);
// Whether one of them is in the memory of a GPU that shares the CPU's.
bool AnyOnUnifiedMemory(CopyEngine& engine, std::span<const LocalTensor> locals);

// How the local tensor lies in memory, offsets counted from its address.
layout::TensorView ViewOf(const LocalTensor& local);
// How a HuggingFace tensor lies in the data section, seen with `rank` dimensions.
layout::TensorView ViewOf(const model::TensorMeta& tensor, size_t rank);

}  // namespace lockstep::exporter

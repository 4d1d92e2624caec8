// LocalTensor: a training tensor's memory on this rank, and the checks that stand before every use of it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/layout/strided_copy.h"
#include "common/layout/training_model.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/plan/sheet.h"

namespace lockstep::exporter {

// In the order of the rank's sheet.
struct LocalTensor {
  std::string name;  // as in the sheet
  model::DType dtype = model::DType::kBF16;
  layout::Extents shape;
  layout::Extents strides;  // in elements; must not overlap
  const void* address = nullptr;
  bool convert = false;  // allow F32 to be exported as BF16, rounded to nearest even; else dtypes must match
};

// The sheets of all ranks. kBadData names the rank whose sheet is none.
Result<std::vector<plan::RankSheet>> ParseSheets(std::span<const std::string> texts);

// Whether `locals` are what the rank's own sheet says, and lie in memory as tensors can. kBadData names the first that
// is not, and both sides. Addresses are not checked.
Status CheckLocals(std::span<const LocalTensor> locals, const plan::RankSheet& sheet);

// A rank's local tensors by the source that they hold.
class LocalsBySource {
 public:
  // `sources`: of each local tensor, as SourcesOfRank() gives them.
  LocalsBySource(const std::vector<uint32_t>& sources, size_t source_count);

  // All locals of `source`: equal copies. Empty where the rank has none.
  std::span<const uint32_t> of(uint32_t source) const;

 private:
  std::vector<uint32_t> locals_;
  std::vector<size_t> first_;  // of each source in locals_
};

// Whether one of them, at its present address, is in a GPU's memory.
bool AnyOnDevice(CopyEngine& engine, std::span<const LocalTensor> locals);

// How the local tensor lies in memory, offsets counted from its address.
layout::TensorView ViewOf(const LocalTensor& local);
// How a HuggingFace tensor lies in the data section, seen with `rank` dimensions.
layout::TensorView ViewOf(const model::TensorMeta& tensor, size_t rank);

}  // namespace lockstep::exporter

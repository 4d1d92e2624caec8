// Chunks: a rank's part of the plan in write batches of bounded size, the same on every rank that knows the plan.
//
// A chunk is what a rank writes of one HuggingFace tensor, or of a range of its rows where the tensor is large. These
// ranges follow from the tensor's shape alone, so that what different ranks report of one tensor has equal rows and
// joins up again.
#pragma once

#include <vector>

#include "common/layout/copy_plan.h"

namespace lockstep::exporter {

inline constexpr uint64_t kRowRangeBytes = uint64_t{32} << 20;

struct Chunk {
  uint32_t source = 0;  // of TrainingModel::sources
  uint32_t tensor = 0;  // of TrainingModel::tensors
  bool frozen = false;
  layout::Pieces pieces;  // local -> HuggingFace tensor, as in PlanEntry; never none
  uint64_t bytes = 0;     // of the HuggingFace tensor
};

// In the order of the plan; ranges of rows by rising rows.
std::vector<Chunk> ChunksOf(const layout::TrainingModel& model, const layout::RankPlan& plan);

// Appends the bytes of the data section that `chunk` writes.
void AppendRanges(const layout::TrainingModel& model, const Chunk& chunk, std::vector<StridedRange>& ranges);

}  // namespace lockstep::exporter

#include "export_plugin/exporter/chunk.h"

#include <algorithm>

#include "export_plugin/exporter/local_tensor.h"

namespace lockstep {
namespace {

// A tensor of `shape` in ranges of whole rows, as relations of the tensor to itself.
std::vector<Pieces> RowRanges(const Extents& shape, uint64_t element_bytes) {
  const uint64_t tensor_bytes = ElementCount(shape) * element_bytes;
  const auto rows = std::find_if(shape.begin(), shape.end(), [](uint64_t extent) { return extent > 1; });
  if (tensor_bytes <= kRowRangeBytes || rows == shape.end()) return {Whole(shape)};
  const uint64_t rows_at_once = std::max<uint64_t>(1, kRowRangeBytes / (tensor_bytes / *rows));
  std::vector<Pieces> ranges;
  for (uint64_t row = 0; row < *rows; row += rows_at_once) {
    Extents at(shape.size(), 0);
    Extents size = shape;
    at[rows - shape.begin()] = row;
    size[rows - shape.begin()] = std::min(rows_at_once, *rows - row);
    ranges.push_back(Box(at, at, size));
  }
  return ranges;
}

}  // namespace

std::vector<Chunk> ChunksOf(const TrainingModel& model, const RankPlan& plan) {
  std::vector<Chunk> chunks;
  for (const PlanEntry& entry : plan.entries) {
    if (entry.pieces.empty()) continue;
    const TensorView target = ViewOf(model.tensors[entry.tensor], entry.pieces[0].target.size());
    for (const Pieces& range : RowRanges(target.shape, target.element_bytes)) {
      Pieces pieces = Compose(entry.pieces, range);
      const uint64_t bytes = ElementCount(pieces) * target.element_bytes;
      if (bytes == 0) continue;
      chunks.push_back({.source = entry.source,
                        .tensor = entry.tensor,
                        .frozen = model.sources[entry.source].frozen,
                        .pieces = std::move(pieces),
                        .bytes = bytes});
    }
  }
  return chunks;
}

void AppendRanges(const TrainingModel& model, const Chunk& chunk, std::vector<StridedRange>& ranges) {
  const TensorView target = ViewOf(model.tensors[chunk.tensor], chunk.pieces[0].target.size());
  Pieces written = chunk.pieces;
  for (Piece& piece : written) piece.source = piece.target;
  std::vector<StridedCopy> copies;
  AppendCopies(Normalize(std::move(written)), target, target, copies);
  Coalesce(copies, {target.element_bytes, target.element_bytes});
  for (const StridedCopy& copy : copies) ranges.push_back(TargetRange(copy));
}

}  // namespace lockstep

#include "export_plugin/exporter/chunk.h"

#include <algorithm>

#include "export_plugin/exporter/local_tensor.h"

namespace lockstep::exporter {
namespace {

// A tensor of `shape` in ranges of whole rows, as relations of the tensor to itself.
std::vector<layout::Pieces> RowRanges(const layout::Extents& shape, uint64_t element_bytes) {
  const uint64_t tensor_bytes = layout::ElementCount(shape) * element_bytes;
  const auto rows = std::find_if(shape.begin(), shape.end(), [](uint64_t extent) { return extent > 1; });
  if (tensor_bytes <= kRowRangeBytes || rows == shape.end()) return {layout::Whole(shape)};
  const uint64_t rows_at_once = std::max<uint64_t>(1, kRowRangeBytes / (tensor_bytes / *rows));
  std::vector<layout::Pieces> ranges;
  for (uint64_t row = 0; row < *rows; row += rows_at_once) {
    layout::Extents at(shape.size(), 0);
    layout::Extents size = shape;
    at[rows - shape.begin()] = row;
    size[rows - shape.begin()] = std::min(rows_at_once, *rows - row);
    ranges.push_back(layout::Box(at, at, size));
  }
  return ranges;
}

}  // namespace

std::vector<Chunk> ChunksOf(const layout::TrainingModel& model, const layout::RankPlan& plan) {
  std::vector<Chunk> chunks;
  for (const layout::PlanEntry& entry : plan.entries) {
    if (entry.pieces.empty()) continue;
    const layout::TensorView target = ViewOf(model.tensors[entry.tensor], entry.pieces[0].target.size());
    for (const layout::Pieces& range : RowRanges(target.shape, target.element_bytes)) {
      layout::Pieces pieces = layout::Compose(entry.pieces, range);
      const uint64_t bytes = layout::ElementCount(pieces) * target.element_bytes;
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

void AppendRanges(const layout::TrainingModel& model, const Chunk& chunk, std::vector<StridedRange>& ranges) {
  const layout::TensorView target = ViewOf(model.tensors[chunk.tensor], chunk.pieces[0].target.size());
  layout::Pieces written = chunk.pieces;
  for (layout::Piece& piece : written) piece.source = piece.target;
  std::vector<layout::StridedCopy> copies;
  layout::AppendCopies(layout::Normalize(std::move(written)), target, target, copies);
  layout::Coalesce(copies, {target.element_bytes, target.element_bytes});
  for (const layout::StridedCopy& copy : copies) ranges.push_back(layout::TargetRange(copy));
}

}  // namespace lockstep::exporter

#include "raas_receiver/placement/plan/row_ranges.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/text.h"

namespace lockstep::placement {

// ---- Dimensions --------------------------------------------------------------------------------------------------

void RowRangeBuilder::LayOut(const model::TensorMeta& tensor, std::span<const ParameterPart* const> parts) {
  tensor_ = &tensor;
  grid_ = {.element_bytes = model::FindDType(tensor.dtype)->bits / 8};
  const size_t rank = tensor.shape.size();
  std::array<size_t, model::kMaxTensorRank> dims{};  // of the tensor, that have more than one index
  for (size_t k = 0; k < rank; ++k) {
    if (tensor.shape[k] == 1) continue;
    dims[grid_.rank] = k;
    grid_.size[grid_.rank++] = tensor.shape[k];
  }
  boxes_.clear();
  for (const ParameterPart* part : parts) {
    for (const layout::Piece& piece : part->pieces) AddBox(*part, piece, dims.data());
  }
  for (size_t d = grid_.rank; d-- > 1;) {
    if (CanMerge(d)) Merge(d);
  }
  if (grid_.rank == 0) {  // one element
    grid_.rank = 1;
    grid_.size[0] = 1;
    for (Box& box : boxes_) box.from[0] = box.step[0] = 0, box.size[0] = 1;
  }
  uint64_t step = grid_.element_bytes;
  for (size_t d = grid_.rank; d-- > 0; step *= grid_.size[d]) grid_.step[d] = step;
}

// `dims`: of the tensor, those that are in the grid.
void RowRangeBuilder::AddBox(const ParameterPart& part, const layout::Piece& piece, const size_t* dims) {
  const EngineParameter& parameter = *part.parameter;
  const size_t leading = parameter.shape.size() - tensor_->shape.size();
  const uint64_t element = model::FindDType(parameter.dtype)->bits / 8;
  Box& box = boxes_.emplace_back();
  box.part = &part;
  box.target = parameter.offset + element - grid_.element_bytes;  // a widened element's upper half
  for (size_t k = 0; k < parameter.shape.size(); ++k) {
    box.target += piece.target[k] * parameter.strides[k] * element;
  }
  for (size_t d = 0; d < grid_.rank; ++d) {
    const size_t k = leading + dims[d];
    box.from[d] = piece.source[k];
    box.size[d] = piece.size[k];
    box.step[d] = parameter.strides[k] * element;
  }
}

// Whether `dim` and the one outside of it can be one.
bool RowRangeBuilder::CanMerge(size_t dim) const {
  const uint64_t size = grid_.size[dim];
  return std::all_of(boxes_.begin(), boxes_.end(), [&](const Box& box) {
    return box.size[dim] == size && (box.size[dim - 1] == 1 || box.step[dim - 1] == size * box.step[dim]);
  });
}

void RowRangeBuilder::Merge(size_t dim) {
  const uint64_t size = grid_.size[dim];
  const auto erase = [&](std::array<uint64_t, model::kMaxTensorRank>& values) {
    std::copy(values.begin() + dim + 1, values.begin() + grid_.rank, values.begin() + dim);
  };
  for (Box& box : boxes_) {
    box.from[dim - 1] *= size;
    box.size[dim - 1] *= size;
    box.step[dim - 1] = box.step[dim];
    erase(box.from);
    erase(box.size);
    erase(box.step);
  }
  grid_.size[dim - 1] *= size;
  erase(grid_.size);
  --grid_.rank;
}

// How many runs of bytes the dimensions of `box` from `first_dim` on are.
uint64_t RowRangeBuilder::RunsOf(const Box& box, size_t first_dim) const {
  uint64_t runs = 1;
  for (size_t d = first_dim; d < grid_.rank; ++d) {
    if (d + 1 < grid_.rank || !box.IsRun(d, grid_.element_bytes)) runs *= box.size[d];
  }
  return runs;
}

void RowRangeBuilder::ChooseRows() {
  double fewest = 0;  // a number of copies may be beyond 64 bits
  for (size_t dim = 0; dim < grid_.rank; ++dim) {
    double copies = 0;
    for (const Box& box : boxes_) {
      double ranges = 1;
      for (size_t d = 0; d < dim; ++d) ranges *= static_cast<double>(box.size[d]);
      copies += ranges * static_cast<double>(RunsOf(box, dim + 1));
    }
    if (dim == 0 || copies < fewest) {
      rows_dim_ = dim;
      fewest = copies;
    }
  }
}

// ---- Cutting -----------------------------------------------------------------------------------------------------

Status RowRangeBuilder::Append(const model::TensorMeta& tensor, std::span<const ParameterPart* const> parts) {
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return OkStatus();
  if (parts.empty()) return {ErrorCode::kBadData, Cat("no rank takes tensor \"", tensor.name, "\"")};
  LayOut(tensor, parts);
  ChooseRows();
  Boxes boxes;
  for (const Box& box : boxes_) boxes.push_back(&box);
  return Sweep(0, std::move(boxes), 0);
}

Status RowRangeBuilder::Sweep(size_t dim, Boxes boxes, uint64_t offset) {
  std::stable_sort(boxes.begin(), boxes.end(), [&](const Box* a, const Box* b) { return a->from[dim] < b->from[dim]; });
  Boxes inside;
  size_t entered = 0;
  for (uint64_t at = 0; at < grid_.size[dim];) {
    std::erase_if(inside, [&](const Box* box) { return box->end(dim) == at; });
    while (entered < boxes.size() && boxes[entered]->from[dim] == at) inside.push_back(boxes[entered++]);
    if (inside.empty()) return Untaken(offset + at * grid_.step[dim]);
    uint64_t next = entered < boxes.size() ? boxes[entered]->from[dim] : grid_.size[dim];
    for (const Box* box : inside) next = std::min(next, box->end(dim));
    LS_RETURN_IF_ERROR(AppendPart(dim, at, next, inside, offset));
    at = next;
  }
  return OkStatus();
}

Status RowRangeBuilder::AppendPart(size_t dim, uint64_t begin, uint64_t end, const Boxes& boxes, uint64_t offset) {
  if (dim == rows_dim_) return AppendRange(begin, end, boxes, offset + begin * grid_.step[dim]);
  for (uint64_t index = begin; index < end; ++index) {
    index_[dim] = index;
    LS_RETURN_IF_ERROR(Sweep(dim + 1, boxes, offset + index * grid_.step[dim]));
  }
  return OkStatus();
}

// `offset` is that of row `begin`.
Status RowRangeBuilder::AppendRange(uint64_t begin, uint64_t end, const Boxes& boxes, uint64_t offset) {
  RowRange range{.offset = tensor_->offset + offset,
                 .rows = end - begin,
                 .pitch = grid_.step[rows_dim_],
                 .first_copy = static_cast<uint32_t>(copies_.size())};
  const bool all_runs = rows_dim_ + 1 == grid_.rank && std::all_of(boxes.begin(), boxes.end(), [&](const Box* box) {
                          return box->IsRun(rows_dim_, grid_.element_bytes);
                        });
  if (all_runs) {
    range.pitch *= range.rows;
    range.rows = 1;
  }
  for (const Box* box : boxes) LS_RETURN_IF_ERROR(AppendColumnCopies(*box, range, begin));
  const auto first = copies_.begin() + range.first_copy;
  std::sort(first, copies_.end(), [](const ColumnCopy& a, const ColumnCopy& b) {
    return std::tie(a.column, a.buffer, a.target_offset) < std::tie(b.column, b.buffer, b.target_offset);
  });
  range.copies = static_cast<uint32_t>(copies_.end() - first);
  LS_RETURN_IF_ERROR(CheckCovered(range));
  PushRange(range);
  return OkStatus();
}

Status RowRangeBuilder::AppendColumnCopies(const Box& box, const RowRange& range, uint64_t begin) {
  uint64_t& copies = copies_of_[box.part->parameter];
  const uint64_t more = RunsOf(box, rows_dim_ + 1);
  if (more > kMaxCopiesOfParameter || (copies += more) > kMaxCopiesOfParameter) {
    return {ErrorCode::kBadData,
            Cat(box.part->Name(), " lies in more than ", kMaxCopiesOfParameter, " places of tensor \"", tensor_->name,
                "\": let this engine take versions from the directory")};
  }
  if (copies_.size() + more > kMaxCopies) {
    return {ErrorCode::kBadData, Cat("the parameters lie in more than ", kMaxCopies, " places: let this engine take ",
                                     "versions from the directory")};
  }
  ColumnCopy copy{.buffer = box.part->buffer, .target_offset = box.target};
  for (size_t d = 0; d < rows_dim_; ++d) copy.target_offset += (index_[d] - box.from[d]) * box.step[d];
  copy.target_offset += (begin - box.from[rows_dim_]) * box.step[rows_dim_];
  copy.target_pitch = range.rows == 1 ? 0 : box.step[rows_dim_];
  copy.bytes = rows_dim_ + 1 == grid_.rank ? range.pitch : grid_.element_bytes;
  AppendRuns(box, rows_dim_ + 1, copy);
  return OkStatus();
}

// The copies of dimensions `dim` and up of `box`, for a row whose first element of `box` goes where `copy` says.
void RowRangeBuilder::AppendRuns(const Box& box, size_t dim, ColumnCopy copy) {
  if (dim == grid_.rank) {
    copies_.push_back(copy);
    return;
  }
  copy.column += box.from[dim] * grid_.step[dim];
  if (dim + 1 == grid_.rank && box.IsRun(dim, grid_.element_bytes)) {
    copy.bytes = box.size[dim] * grid_.element_bytes;
    copies_.push_back(copy);
    return;
  }
  for (uint64_t i = 0; i < box.size[dim]; ++i) {
    AppendRuns(box, dim + 1, copy);
    copy.column += grid_.step[dim];
    copy.target_offset += box.step[dim];
  }
}

// ---- Checking ----------------------------------------------------------------------------------------------------

Status RowRangeBuilder::CheckCovered(const RowRange& range) const {
  uint64_t covered = 0;
  for (size_t i = range.first_copy; i < copies_.size() && copies_[i].column <= covered; ++i) {
    covered = std::max(covered, copies_[i].column + copies_[i].bytes);
  }
  return covered == range.pitch ? OkStatus() : Untaken(range.offset - tensor_->offset + covered);
}

Status RowRangeBuilder::Untaken(uint64_t offset) const {
  uint64_t element = offset / grid_.element_bytes;
  layout::Extents index(tensor_->shape.size());
  for (size_t k = index.size(); k-- > 0; element /= tensor_->shape[k]) index[k] = element % tensor_->shape[k];
  return {ErrorCode::kBadData,
          Cat("no rank takes element ", layout::ShapeText(index), " of tensor \"", tensor_->name, "\"")};
}

// ---- Merging -----------------------------------------------------------------------------------------------------

void RowRangeBuilder::PushRange(RowRange range) {
  if (!ranges_.empty() && ranges_.back().end() == range.offset && ranges_.back().copies == range.copies &&
      (Widen(ranges_.back(), range) || Lengthen(ranges_.back(), range))) {
    copies_.resize(range.first_copy);
    return;
  }
  ranges_.push_back(range);
}

// One row each, whose ends meet in the target too.
bool RowRangeBuilder::Widen(RowRange& last, const RowRange& range) {
  if (last.rows != 1 || range.rows != 1) return false;
  for (uint32_t i = 0; i < range.copies; ++i) {
    const ColumnCopy& a = copies_[last.first_copy + i];
    const ColumnCopy& b = copies_[range.first_copy + i];
    const bool whole = a.bytes == last.pitch && b.bytes == range.pitch;
    if (!whole || a.buffer != b.buffer || b.target_offset != a.target_offset + a.bytes) return false;
  }
  last.pitch += range.pitch;
  for (uint32_t i = 0; i < range.copies; ++i) copies_[last.first_copy + i].bytes = last.pitch;
  return true;
}

// Further rows of the same pitch.
bool RowRangeBuilder::Lengthen(RowRange& last, const RowRange& range) {
  if (last.pitch != range.pitch) return false;
  const auto pitch_of = [&](const ColumnCopy& a, const ColumnCopy& b) {
    return last.rows == 1 ? b.target_offset - a.target_offset : a.target_pitch;
  };
  for (uint32_t i = 0; i < range.copies; ++i) {
    const ColumnCopy& a = copies_[last.first_copy + i];
    const ColumnCopy& b = copies_[range.first_copy + i];
    if (a.column != b.column || a.bytes != b.bytes || a.buffer != b.buffer || b.target_offset < a.target_offset) {
      return false;
    }
    const uint64_t pitch = pitch_of(a, b);
    if (b.target_offset != a.target_offset + last.rows * pitch) return false;
    if (range.rows > 1 && b.target_pitch != pitch) return false;
  }
  for (uint32_t i = 0; i < range.copies; ++i) {
    ColumnCopy& a = copies_[last.first_copy + i];
    a.target_pitch = pitch_of(a, copies_[range.first_copy + i]);
  }
  last.rows += range.rows;
  return true;
}

}  // namespace lockstep::placement

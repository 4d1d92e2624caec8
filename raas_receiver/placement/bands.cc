#include "raas_receiver/placement/bands.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/text.h"
#include "common/layout/strided_copy.h"

namespace lockstep {

// ---- Dimensions --------------------------------------------------------------------------------------------------

void BandBuilder::See(const TensorMeta& tensor, std::span<const Share* const> shares) {
  tensor_ = &tensor;
  grid_ = {.element_bytes = FindDType(tensor.dtype)->bits / 8};
  const size_t rank = tensor.shape.size();
  std::array<size_t, kMaxTensorRank> dims{};  // of the tensor, that have more than one index
  for (size_t k = 0; k < rank; ++k) {
    if (tensor.shape[k] == 1) continue;
    dims[grid_.rank] = k;
    grid_.size[grid_.rank++] = tensor.shape[k];
  }
  boxes_.clear();
  for (const Share* share : shares) {
    for (const Piece& piece : share->pieces) AddBox(*share, piece, dims.data());
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
void BandBuilder::AddBox(const Share& share, const Piece& piece, const size_t* dims) {
  const EngineParameter& parameter = *share.parameter;
  const size_t leading = parameter.shape.size() - tensor_->shape.size();
  const uint64_t element = FindDType(parameter.dtype)->bits / 8;
  Box& box = boxes_.emplace_back();
  box.share = &share;
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
bool BandBuilder::CanMerge(size_t dim) const {
  const uint64_t size = grid_.size[dim];
  return std::all_of(boxes_.begin(), boxes_.end(), [&](const Box& box) {
    return box.size[dim] == size && (box.size[dim - 1] == 1 || box.step[dim - 1] == size * box.step[dim]);
  });
}

void BandBuilder::Merge(size_t dim) {
  const uint64_t size = grid_.size[dim];
  const auto erase = [&](std::array<uint64_t, kMaxTensorRank>& values) {
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
uint64_t BandBuilder::RunsOf(const Box& box, size_t first_dim) const {
  uint64_t runs = 1;
  for (size_t d = first_dim; d < grid_.rank; ++d) {
    if (d + 1 < grid_.rank || !box.IsRun(d, grid_.element_bytes)) runs *= box.size[d];
  }
  return runs;
}

void BandBuilder::ChooseRows() {
  double fewest = 0;  // a number of ways may be beyond 64 bits
  for (size_t dim = 0; dim < grid_.rank; ++dim) {
    double ways = 0;
    for (const Box& box : boxes_) {
      double bands = 1;
      for (size_t d = 0; d < dim; ++d) bands *= static_cast<double>(box.size[d]);
      ways += bands * static_cast<double>(RunsOf(box, dim + 1));
    }
    if (dim == 0 || ways < fewest) {
      rows_dim_ = dim;
      fewest = ways;
    }
  }
}

// ---- Cutting -----------------------------------------------------------------------------------------------------

Status BandBuilder::Append(const TensorMeta& tensor, std::span<const Share* const> shares) {
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return OkStatus();
  if (shares.empty()) return {ErrorCode::kBadData, Cat("no rank takes tensor \"", tensor.name, "\"")};
  See(tensor, shares);
  ChooseRows();
  Boxes boxes;
  for (const Box& box : boxes_) boxes.push_back(&box);
  return Sweep(0, std::move(boxes), 0);
}

Status BandBuilder::Sweep(size_t dim, Boxes boxes, uint64_t offset) {
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

Status BandBuilder::AppendPart(size_t dim, uint64_t begin, uint64_t end, const Boxes& boxes, uint64_t offset) {
  if (dim == rows_dim_) return AppendBand(begin, end, boxes, offset + begin * grid_.step[dim]);
  for (uint64_t index = begin; index < end; ++index) {
    index_[dim] = index;
    LS_RETURN_IF_ERROR(Sweep(dim + 1, boxes, offset + index * grid_.step[dim]));
  }
  return OkStatus();
}

// `offset` is that of row `begin`.
Status BandBuilder::AppendBand(uint64_t begin, uint64_t end, const Boxes& boxes, uint64_t offset) {
  Band band{.offset = tensor_->offset + offset,
            .rows = end - begin,
            .pitch = grid_.step[rows_dim_],
            .first_way = static_cast<uint32_t>(ways_.size())};
  const bool all_runs = rows_dim_ + 1 == grid_.rank && std::all_of(boxes.begin(), boxes.end(), [&](const Box* box) {
                          return box->IsRun(rows_dim_, grid_.element_bytes);
                        });
  if (all_runs) {
    band.pitch *= band.rows;
    band.rows = 1;
  }
  for (const Box* box : boxes) LS_RETURN_IF_ERROR(AppendWays(*box, band, begin));
  const auto first = ways_.begin() + band.first_way;
  std::sort(first, ways_.end(), [](const Way& a, const Way& b) {
    return std::tie(a.column, a.window, a.target_offset) < std::tie(b.column, b.window, b.target_offset);
  });
  band.ways = static_cast<uint32_t>(ways_.end() - first);
  LS_RETURN_IF_ERROR(CheckCovered(band));
  PushBand(band);
  return OkStatus();
}

Status BandBuilder::AppendWays(const Box& box, const Band& band, uint64_t begin) {
  uint64_t& ways = ways_of_[box.share->parameter];
  const uint64_t more = RunsOf(box, rows_dim_ + 1);
  if (more > kMaxWaysOfParameter || (ways += more) > kMaxWaysOfParameter) {
    return {ErrorCode::kBadData,
            Cat(box.share->Name(), " lies in more than ", kMaxWaysOfParameter, " places of tensor \"", tensor_->name,
                "\": let this engine take versions from the directory")};
  }
  if (ways_.size() + more > kMaxWays) {
    return {ErrorCode::kBadData, Cat("the parameters lie in more than ", kMaxWays, " places: let this engine take ",
                                     "versions from the directory")};
  }
  Way way{.window = box.share->window, .target_offset = box.target};
  for (size_t d = 0; d < rows_dim_; ++d) way.target_offset += (index_[d] - box.from[d]) * box.step[d];
  way.target_offset += (begin - box.from[rows_dim_]) * box.step[rows_dim_];
  way.target_pitch = band.rows == 1 ? 0 : box.step[rows_dim_];
  way.bytes = rows_dim_ + 1 == grid_.rank ? band.pitch : grid_.element_bytes;
  AppendRuns(box, rows_dim_ + 1, way);
  return OkStatus();
}

// The ways of dimensions `dim` and up of `box`, for a row whose first element of `box` goes where `way` says.
void BandBuilder::AppendRuns(const Box& box, size_t dim, Way way) {
  if (dim == grid_.rank) {
    ways_.push_back(way);
    return;
  }
  way.column += box.from[dim] * grid_.step[dim];
  if (dim + 1 == grid_.rank && box.IsRun(dim, grid_.element_bytes)) {
    way.bytes = box.size[dim] * grid_.element_bytes;
    ways_.push_back(way);
    return;
  }
  for (uint64_t i = 0; i < box.size[dim]; ++i) {
    AppendRuns(box, dim + 1, way);
    way.column += grid_.step[dim];
    way.target_offset += box.step[dim];
  }
}

// ---- Checking ----------------------------------------------------------------------------------------------------

Status BandBuilder::CheckCovered(const Band& band) const {
  uint64_t covered = 0;
  for (size_t i = band.first_way; i < ways_.size() && ways_[i].column <= covered; ++i) {
    covered = std::max(covered, ways_[i].column + ways_[i].bytes);
  }
  return covered == band.pitch ? OkStatus() : Untaken(band.offset - tensor_->offset + covered);
}

Status BandBuilder::Untaken(uint64_t offset) const {
  uint64_t element = offset / grid_.element_bytes;
  Extents index(tensor_->shape.size());
  for (size_t k = index.size(); k-- > 0; element /= tensor_->shape[k]) index[k] = element % tensor_->shape[k];
  return {ErrorCode::kBadData, Cat("no rank takes element ", ShapeText(index), " of tensor \"", tensor_->name, "\"")};
}

// ---- Merging -----------------------------------------------------------------------------------------------------

void BandBuilder::PushBand(Band band) {
  if (!bands_.empty() && bands_.back().end() == band.offset && bands_.back().ways == band.ways &&
      (Widen(bands_.back(), band) || Lengthen(bands_.back(), band))) {
    ways_.resize(band.first_way);
    return;
  }
  bands_.push_back(band);
}

// One row each, whose ends meet in the target too.
bool BandBuilder::Widen(Band& last, const Band& band) {
  if (last.rows != 1 || band.rows != 1) return false;
  for (uint32_t i = 0; i < band.ways; ++i) {
    const Way& a = ways_[last.first_way + i];
    const Way& b = ways_[band.first_way + i];
    const bool whole = a.bytes == last.pitch && b.bytes == band.pitch;
    if (!whole || a.window != b.window || b.target_offset != a.target_offset + a.bytes) return false;
  }
  last.pitch += band.pitch;
  for (uint32_t i = 0; i < band.ways; ++i) ways_[last.first_way + i].bytes = last.pitch;
  return true;
}

// Further rows of the same pitch.
bool BandBuilder::Lengthen(Band& last, const Band& band) {
  if (last.pitch != band.pitch) return false;
  const auto pitch_of = [&](const Way& a, const Way& b) {
    return last.rows == 1 ? b.target_offset - a.target_offset : a.target_pitch;
  };
  for (uint32_t i = 0; i < band.ways; ++i) {
    const Way& a = ways_[last.first_way + i];
    const Way& b = ways_[band.first_way + i];
    if (a.column != b.column || a.bytes != b.bytes || a.window != b.window || b.target_offset < a.target_offset) {
      return false;
    }
    const uint64_t pitch = pitch_of(a, b);
    if (b.target_offset != a.target_offset + last.rows * pitch) return false;
    if (band.rows > 1 && b.target_pitch != pitch) return false;
  }
  for (uint32_t i = 0; i < band.ways; ++i) {
    Way& a = ways_[last.first_way + i];
    a.target_pitch = pitch_of(a, ways_[band.first_way + i]);
  }
  last.rows += band.rows;
  return true;
}

}  // namespace lockstep

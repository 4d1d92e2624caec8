#include "raas_receiver/engine/placement/plan/copies.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/text.h"
#include "common/layout/training_model.h"

namespace lockstep::engine {
namespace {

using Copies = std::vector<layout::StridedCopy>;

// By rising `first`, then `second`, merged.
void Order(Copies& copies, uint64_t layout::StridedCopy::*first, uint64_t layout::StridedCopy::*second) {
  std::sort(copies.begin(), copies.end(), [&](const layout::StridedCopy& a, const layout::StridedCopy& b) {
    return std::tie(a.*first, a.*second) < std::tie(b.*first, b.*second);
  });
  layout::Coalesce(copies, {});
}

void OrderBySource(Copies& copies) {
  Order(copies, &layout::StridedCopy::source_offset, &layout::StridedCopy::target_offset);
}

void OrderByTarget(Copies& copies) {
  Order(copies, &layout::StridedCopy::target_offset, &layout::StridedCopy::source_offset);
}

// The bytes [from, from + bytes) of every element of `view`. REQUIRES `bytes` to divide an element.
layout::TensorView PartOf(layout::TensorView view, uint64_t from, uint64_t bytes) {
  for (uint64_t& stride : view.strides) stride *= view.element_bytes / bytes;
  view.element_bytes = bytes;
  view.offset += from;
  return view;
}

// What `pieces` reach, as a relation of it to itself.
layout::Pieces Reached(layout::Pieces pieces) {
  for (layout::Piece& piece : pieces) piece.source = piece.target;
  return pieces;
}

}  // namespace

Status CopyBuilder::AppendTo(Lists& lists, const ParameterPart& part, const layout::Pieces& pieces,
                             const layout::TensorView& source, const layout::TensorView& target) {
  for (const layout::Piece& piece : pieces) {
    const uint64_t more = layout::CopyCount(piece, source, target);
    if (more > kMaxCopiesOfParameter || (count_of_parameter_ += more) > kMaxCopiesOfParameter) {
      return {ErrorCode::kBadData, Cat(part.Name(), " takes more than ", kMaxCopiesOfParameter,
                                       " copies: let this engine take versions from the directory")};
    }
    if ((count_ += more) > kMaxCopies) {
      return {ErrorCode::kBadData, Cat("the parameters take more than ", kMaxCopies,
                                       " copies: let this engine take versions from the directory")};
    }
  }
  const uint32_t memory = part.parameter->memory;
  if (lists.size() <= memory) lists.resize(memory + 1);
  Copies copies;
  layout::AppendCopies(pieces, source, target, copies);
  OrderBySource(copies);  // by themselves: others may read what lies between
  lists[memory].insert(lists[memory].end(), copies.begin(), copies.end());
  return OkStatus();
}

Status CopyBuilder::Append(const ParameterPart& part) {
  if (part.parameter != parameter_) {
    parameter_ = part.parameter;
    view_ = ViewOf(*parameter_);
    count_of_parameter_ = 0;
  }
  if (part.tensor == kNoTensor) return AppendTo(zeros_, part, part.pieces, view_, view_);
  const model::TensorMeta& tensor = layout_.tensors()[part.tensor];
  const uint64_t bytes = model::FindDType(tensor.dtype)->bits / 8;
  const layout::TensorView source =
      layout::TensorView::Contiguous(layout::Promoted(tensor.shape, view_.shape.size()), bytes, tensor.offset);
  if (bytes == view_.element_bytes) return AppendTo(copies_, part, part.pieces, source, view_);
  const uint64_t lower_bytes = view_.element_bytes - bytes;
  LS_RETURN_IF_ERROR(AppendTo(copies_, part, part.pieces, source, PartOf(view_, lower_bytes, bytes)));
  const layout::TensorView lower = PartOf(view_, 0, lower_bytes);
  return AppendTo(zeros_, part, Reached(part.pieces), lower, lower);
}

Result<RankPlacement> CopyBuilder::Place(std::span<const ParameterPart> parts) {
  copies_.clear();
  zeros_.clear();
  parameter_ = nullptr;
  for (const ParameterPart& part : parts) LS_RETURN_IF_ERROR(Append(part));
  std::vector<MemoryCopy> copies;
  for (uint32_t memory = 0; memory < copies_.size(); ++memory) {
    OrderBySource(copies_[memory]);
    for (const layout::StridedCopy& copy : copies_[memory]) copies.push_back({memory, copy});
  }
  std::vector<MemoryZeros> zeros;
  for (uint32_t memory = 0; memory < zeros_.size(); ++memory) {
    OrderByTarget(zeros_[memory]);
    for (const layout::StridedCopy& copy : zeros_[memory]) zeros.push_back({memory, layout::TargetRange(copy)});
  }
  return RankPlacement(std::move(copies), std::move(zeros));
}

}  // namespace lockstep::engine

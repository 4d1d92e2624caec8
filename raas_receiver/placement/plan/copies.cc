#include "raas_receiver/placement/plan/copies.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/text.h"
#include "common/layout/training_model.h"

namespace lockstep::placement {
namespace {

bool TargetLess(const layout::StridedCopy& a, const layout::StridedCopy& b) {
  return std::tie(a.target_offset, a.source_offset) < std::tie(b.target_offset, b.source_offset);
}

std::vector<std::vector<layout::StridedCopy>> Ordered(std::vector<std::vector<layout::StridedCopy>> lists) {
  for (std::vector<layout::StridedCopy>& of_buffer : lists) {
    std::sort(of_buffer.begin(), of_buffer.end(), TargetLess);
    layout::Coalesce(of_buffer, {});
  }
  return lists;
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
  layout::AppendCopies(pieces, source, target, lists[part.buffer]);
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

std::vector<std::vector<layout::StridedCopy>> CopyBuilder::TakeCopies() {
  return Ordered(std::move(copies_));
}

std::vector<std::vector<StridedRange>> CopyBuilder::TakeZeros() {
  std::vector<std::vector<StridedRange>> ranges(zeros_.size());
  const Lists lists = Ordered(std::move(zeros_));
  for (size_t buffer = 0; buffer < lists.size(); ++buffer) {
    for (const layout::StridedCopy& copy : lists[buffer]) ranges[buffer].push_back(layout::TargetRange(copy));
  }
  return ranges;
}

}  // namespace lockstep::placement

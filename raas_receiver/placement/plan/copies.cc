#include "raas_receiver/placement/plan/copies.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/text.h"
#include "common/layout/training_model.h"

namespace lockstep {
namespace {

bool TargetLess(const StridedCopy& a, const StridedCopy& b) {
  return std::tie(a.target_offset, a.source_offset) < std::tie(b.target_offset, b.source_offset);
}

std::vector<std::vector<StridedCopy>> Ordered(std::vector<std::vector<StridedCopy>> lists) {
  for (std::vector<StridedCopy>& of_buffer : lists) {
    std::sort(of_buffer.begin(), of_buffer.end(), TargetLess);
    Coalesce(of_buffer, {});
  }
  return lists;
}

// The bytes [from, from + bytes) of every element of `view`. REQUIRES `bytes` to divide an element.
TensorView PartOf(TensorView view, uint64_t from, uint64_t bytes) {
  for (uint64_t& stride : view.strides) stride *= view.element_bytes / bytes;
  view.element_bytes = bytes;
  view.offset += from;
  return view;
}

// What `pieces` reach, as a relation of it to itself.
Pieces Reached(Pieces pieces) {
  for (Piece& piece : pieces) piece.source = piece.target;
  return pieces;
}

}  // namespace

Status CopyBuilder::AppendTo(Lists& lists, const ParameterPart& part, const Pieces& pieces, const TensorView& source,
                             const TensorView& target) {
  for (const Piece& piece : pieces) {
    const uint64_t more = CopyCount(piece, source, target);
    if (more > kMaxCopiesOfParameter || (count_of_parameter_ += more) > kMaxCopiesOfParameter) {
      return {ErrorCode::kBadData, Cat(part.Name(), " takes more than ", kMaxCopiesOfParameter,
                                       " copies: let this engine take versions from the directory")};
    }
    if ((count_ += more) > kMaxCopies) {
      return {ErrorCode::kBadData, Cat("the parameters take more than ", kMaxCopies,
                                       " copies: let this engine take versions from the directory")};
    }
  }
  AppendCopies(pieces, source, target, lists[part.buffer]);
  return OkStatus();
}

Status CopyBuilder::Append(const ParameterPart& part) {
  if (part.parameter != parameter_) {
    parameter_ = part.parameter;
    view_ = ViewOf(*parameter_);
    count_of_parameter_ = 0;
  }
  if (part.tensor == kNoTensor) return AppendTo(zeros_, part, part.pieces, view_, view_);
  const TensorMeta& tensor = layout_.tensors()[part.tensor];
  const uint64_t bytes = FindDType(tensor.dtype)->bits / 8;
  const TensorView source = TensorView::Contiguous(Promoted(tensor.shape, view_.shape.size()), bytes, tensor.offset);
  if (bytes == view_.element_bytes) return AppendTo(copies_, part, part.pieces, source, view_);
  const uint64_t lower_bytes = view_.element_bytes - bytes;
  LS_RETURN_IF_ERROR(AppendTo(copies_, part, part.pieces, source, PartOf(view_, lower_bytes, bytes)));
  const TensorView lower = PartOf(view_, 0, lower_bytes);
  return AppendTo(zeros_, part, Reached(part.pieces), lower, lower);
}

std::vector<std::vector<StridedCopy>> CopyBuilder::TakeCopies() {
  return Ordered(std::move(copies_));
}

std::vector<std::vector<StridedRange>> CopyBuilder::TakeZeros() {
  std::vector<std::vector<StridedRange>> ranges(zeros_.size());
  const Lists lists = Ordered(std::move(zeros_));
  for (size_t buffer = 0; buffer < lists.size(); ++buffer) {
    for (const StridedCopy& copy : lists[buffer]) ranges[buffer].push_back(TargetRange(copy));
  }
  return ranges;
}

}  // namespace lockstep

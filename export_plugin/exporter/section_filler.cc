#include "export_plugin/exporter/section_filler.h"

#include <algorithm>
#include <utility>

#include "common/base/text.h"

namespace lockstep::exporter {
namespace {

// All copies of the rank's model, which must be `layout`'s.
Result<OwnCopies> AllCopies(const std::string& description, std::span<const LocalTensor> locals,
                            const model::ModelLayout& layout) {
  LS_ASSIGN_OR_RETURN(const plan::ShardDescription parsed, plan::ParseDescription(description));
  LS_ASSIGN_OR_RETURN(const layout::TrainingModel model, plan::BuildTrainingModel({parsed}));
  LS_ASSIGN_OR_RETURN(const layout::CopyPlan plan, layout::CompileExport(model, {true}));
  if (layout::HuggingFaceTensors(model) != layout.tensors()) {
    return Status(ErrorCode::kBadData, Cat("this rank by itself describes another model (", model.tensors.size(),
                                           " tensors) than all ranks together (", layout.tensors().size(), ")"));
  }
  const LocalsBySource by_source = LocalsOfRank(model, 0);
  return LowerCopies(model, ChunksOf(model, plan.ranks[0]), locals, by_source);
}

uint64_t EndOf(const layout::StridedCopy& copy) {
  return copy.target_offset + (copy.rows - 1) * copy.target_pitch + copy.row_bytes;
}

}  // namespace

Result<std::unique_ptr<SectionFiller>> SectionFiller::Create(const std::string& description,
                                                             std::span<const LocalTensor> locals,
                                                             std::shared_ptr<const model::ModelLayout> layout) {
  Result<OwnCopies> own = AllCopies(description, locals, *layout);
  LS_RETURN_IF_ERROR(own.status().WithContext("only a rank that holds the whole model can fill ranges of it"));
  std::unique_ptr<SectionFiller> filler(new SectionFiller(std::move(layout)));
  std::vector<LocalCopy>& copies = filler->copies_;
  copies = std::move(own->changing.copies);
  copies.insert(copies.end(), own->frozen.copies.begin(), own->frozen.copies.end());
  std::sort(copies.begin(), copies.end(),
            [](const LocalCopy& a, const LocalCopy& b) { return a.copy.target_offset < b.copy.target_offset; });
  uint64_t end = 0;
  for (const LocalCopy& copy : copies) filler->ends_.push_back(end = std::max(end, EndOf(copy.copy)));
  return filler;
}

Status SectionFiller::Fill(ByteRange range, std::byte* target, std::span<const LocalTensor> locals,
                           CopyEngine& engine) {
  LS_RETURN_IF_ERROR(CheckRange(range));
  const uint64_t end = range.offset + range.bytes;
  clipped_.clear();
  std::vector<layout::StridedCopy> parts;
  const auto first = std::upper_bound(ends_.begin(), ends_.end(), range.offset) - ends_.begin();
  for (size_t i = static_cast<size_t>(first); i < copies_.size() && copies_[i].copy.target_offset < end; ++i) {
    parts.clear();
    layout::AppendClipped(copies_[i].copy, range.offset, end, ElementsOf(copies_[i].conversion), parts);
    for (layout::StridedCopy& part : parts) {
      part.target_offset -= range.offset;
      clipped_.push_back({copies_[i].local, part, copies_[i].conversion});
    }
  }
  LS_RETURN_IF_ERROR(Place(clipped_, locals, target, placed_));
  return engine.Run(placed_);
}

Status SectionFiller::CheckRange(ByteRange range) const {
  if (range.bytes == 0 || range.offset > layout_->data_bytes() || range.bytes > layout_->data_bytes() - range.offset) {
    return {ErrorCode::kBadData, Cat(range.bytes, " bytes at ", range.offset, " are no range of a data section of ",
                                     layout_->data_bytes(), " bytes")};
  }
  LS_RETURN_IF_ERROR(CheckCut(range.offset));
  return CheckCut(range.offset + range.bytes);
}

Status SectionFiller::CheckCut(uint64_t at) const {
  if (at == layout_->data_bytes()) return OkStatus();
  const model::TensorMeta& tensor = layout_->tensors()[layout_->TensorAt(at)];
  if ((at - tensor.offset) * 8 % model::FindDType(tensor.dtype)->bits == 0) return OkStatus();
  return {ErrorCode::kBadData, Cat("byte ", at, " is within an element of tensor \"", tensor.name, "\" (",
                                   model::FindDType(tensor.dtype)->name, " from byte ", tensor.offset, " on)")};
}

}  // namespace lockstep::exporter

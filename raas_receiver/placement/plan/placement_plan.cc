#include "raas_receiver/placement/plan/placement_plan.h"

#include <algorithm>

#include "raas_receiver/placement/plan/copies.h"
#include "raas_receiver/placement/plan/parameter_parts.h"
#include "raas_receiver/placement/plan/row_ranges.h"

namespace lockstep::placement {
namespace {

std::vector<TargetBuffer> BuffersOf(const std::vector<RankDescription>& ranks) {
  std::vector<TargetBuffer> buffers;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    for (uint32_t memory = 0; memory < ranks[rank].memories.size(); ++memory) {
      buffers.push_back({rank, memory, ranks[rank].memories[memory]});
    }
  }
  return buffers;
}

Status AppendRowRanges(const TensorTable& tensors, const model::ModelLayout& layout,
                       const std::vector<ParameterPart>& parts, RowRangeBuilder& ranges) {
  std::vector<const ParameterPart*> by_tensor;
  by_tensor.reserve(parts.size());
  for (const ParameterPart& part : parts) by_tensor.push_back(&part);
  std::stable_sort(by_tensor.begin(), by_tensor.end(),
                   [](const ParameterPart* a, const ParameterPart* b) { return a->tensor < b->tensor; });
  auto begin = by_tensor.begin();
  for (uint32_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    const auto end =
        std::find_if(begin, by_tensor.end(), [&](const ParameterPart* one) { return one->tensor != tensor; });
    if (tensors.wanted(tensor)) LS_RETURN_IF_ERROR(ranges.Append(layout.tensors()[tensor], {begin, end}));
    begin = end;
  }
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<const PlacementPlan>> PlacementPlan::Compile(const model::ModelLayout& layout,
                                                                    const std::vector<RankDescription>& ranks,
                                                                    const std::vector<std::string>& unused) {
  LS_ASSIGN_OR_RETURN(const TensorTable tensors, TensorTable::Create(layout, unused));
  const std::shared_ptr<PlacementPlan> plan(new PlacementPlan());
  plan->buffers_ = BuffersOf(ranks);
  std::vector<ParameterPart> parts;
  uint32_t first_buffer = 0;
  for (const RankDescription& rank : ranks) {
    LS_RETURN_IF_ERROR(AppendParts(tensors, rank, first_buffer, parts));
    first_buffer += static_cast<uint32_t>(rank.memories.size());
  }
  CopyBuilder copies(layout, plan->buffers_.size());
  for (const ParameterPart& part : parts) LS_RETURN_IF_ERROR(copies.Append(part));
  plan->copies_ = copies.TakeCopies();
  plan->zeros_ = copies.TakeZeros();
  RowRangeBuilder ranges;
  LS_RETURN_IF_ERROR(AppendRowRanges(tensors, layout, parts, ranges));
  plan->row_ranges_ = ranges.TakeRanges();
  plan->column_copies_ = ranges.TakeCopies();
  return std::shared_ptr<const PlacementPlan>(plan);
}

std::span<const RowRange>::iterator PlacementPlan::RowRangeAt(uint64_t offset) const {
  const std::span<const RowRange> all = row_ranges();
  return std::upper_bound(all.begin(), all.end(), offset,
                          [](uint64_t position, const RowRange& range) { return position < range.end(); });
}

}  // namespace lockstep::placement

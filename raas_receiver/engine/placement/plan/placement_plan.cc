#include "raas_receiver/engine/placement/plan/placement_plan.h"

#include <algorithm>
#include <span>

#include "kernels/hash.h"
#include "raas_receiver/engine/placement/plan/copies.h"
#include "raas_receiver/engine/placement/plan/coverage.h"
#include "raas_receiver/engine/placement/plan/parameter_parts.h"

namespace lockstep::engine {
namespace {

// The ranks together have every element of the tensors that the engine takes.
Status CheckAllTaken(const TensorTable& tensors, const model::ModelLayout& layout,
                     const std::vector<ParameterPart>& parts) {
  std::vector<const ParameterPart*> by_tensor;
  by_tensor.reserve(parts.size());
  for (const ParameterPart& part : parts) by_tensor.push_back(&part);
  std::stable_sort(by_tensor.begin(), by_tensor.end(),
                   [](const ParameterPart* a, const ParameterPart* b) { return a->tensor < b->tensor; });
  auto begin = by_tensor.begin();
  for (uint32_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    const auto end =
        std::find_if(begin, by_tensor.end(), [&](const ParameterPart* one) { return one->tensor != tensor; });
    if (tensors.wanted(tensor)) LS_RETURN_IF_ERROR(CheckTaken(layout.tensors()[tensor], {begin, end}));
    begin = end;
  }
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<const PlacementPlan>> CompilePlacement(const model::ModelLayout& layout,
                                                              const std::vector<RankDescription>& ranks,
                                                              const std::vector<std::string>& unused, Looked looked) {
  LS_ASSIGN_OR_RETURN(const TensorTable tensors, TensorTable::Create(layout, unused));
  std::vector<ParameterPart> parts;
  std::vector<size_t> ends;  // of each rank's parts
  for (const RankDescription& rank : ranks) {
    LS_RETURN_IF_ERROR(AppendParts(tensors, rank, parts));
    ends.push_back(parts.size());
  }
  const auto plan = std::make_shared<PlacementPlan>();
  CopyBuilder copies(layout);
  size_t begin = 0;
  for (const size_t end : ends) {
    LS_ASSIGN_OR_RETURN(RankPlacement placement, copies.Place(std::span(parts).subspan(begin, end - begin)));
    plan->push_back(std::move(placement));
    begin = end;
  }
  if (looked == Looked::kAll) LS_RETURN_IF_ERROR(CheckAllTaken(tensors, layout, parts));
  return std::shared_ptr<const PlacementPlan>(plan);
}

std::array<uint8_t, 16> DigestOf(const PlacementPlan& plan) {
  std::vector<uint64_t> words;
  for (const RankPlacement& rank : plan) {
    words.insert(words.end(), {rank.copies().size(), rank.zeros().size()});
    for (const auto& [memory, copy] : rank.copies()) {
      words.insert(words.end(), {memory, copy.source_offset, copy.target_offset, copy.rows, copy.row_bytes,
                                 copy.source_pitch, copy.target_pitch});
    }
    for (const auto& [memory, range] : rank.zeros()) {
      words.insert(words.end(), {memory, range.offset, range.row_bytes, range.rows, range.pitch});
    }
  }
  return Hash128(std::as_bytes(std::span(words)));
}

}  // namespace lockstep::engine

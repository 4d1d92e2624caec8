// For tests and benchmarks: what an engine's rank has of a model, as if it had described itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/layout/piece.h"
#include "raas_receiver/placement/rules/expansion.h"

namespace lockstep::placement {

struct ExpandedRules {
  // With shapes, contiguous strides, slices and padding; memory 0, offsets back to back, each a multiple of 256. A head
  // that is tied to the embedding is not among them.
  std::vector<EngineParameter> parameters;
  std::vector<std::string> unused;  // HuggingFace tensors that the engine does not take (MTP layers)
};

// As Expand().
inline Result<ExpandedRules> ExpandRules(const model::ModelLayout& layout, const EnginePlace& place) {
  constexpr uint64_t kAlignment = 256;
  LS_ASSIGN_OR_RETURN(const auto index, LayoutIndex::Create(layout));
  LS_ASSIGN_OR_RETURN(Expansion expansion, Expand(index, place));
  ExpandedRules rules{.unused = std::move(expansion.unused)};
  uint64_t offset = 0;
  for (ExpandedParameter& expanded : expansion.parameters) {
    if (expanded.tied) continue;
    EngineParameter& parameter = rules.parameters.emplace_back(std::move(expanded.parameter));
    parameter.offset = offset;
    const uint64_t bytes = layout::ElementCount(parameter.shape) * model::FindDType(parameter.dtype)->bits / 8;
    offset += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  return rules;
}

}  // namespace lockstep::placement

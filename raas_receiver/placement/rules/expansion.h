// Expansion: an engine's table for one family, worked out for one rank and one layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "raas_receiver/placement/description/description.h"
#include "raas_receiver/placement/rules/layout_index.h"
#include "raas_receiver/placement/rules/rule_table.h"

namespace lockstep::placement {

inline constexpr uint32_t kNoLayer = ~uint32_t{0};

struct ExpandedParameter {
  EngineParameter parameter;             // of the newest release's name, without offset; memory 0
  std::vector<std::string> other_names;  // of older releases
  ParameterCut cut = ParameterCut::kWhole;
  uint32_t layer = kNoLayer;
  bool tied = false;  // its tensor is another parameter's: the engine may have none of its own
};

struct Expansion {
  std::vector<ExpandedParameter> parameters;
  std::vector<std::string> unused;  // HuggingFace tensors that the engine does not take
  uint32_t layers = 0;              // of the decoder
};

// Every parameter that `place` has of the model. kBadData names the tensor that no rule takes, or the one that a rule
// misses or cannot cut; kNotFound for an engine or family without a table, saying which there are.
Result<Expansion> Expand(const LayoutIndex& index, const EnginePlace& place);

}  // namespace lockstep::placement

// A rank's part of one parameter, cut out of the HuggingFace tensors as its row says.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/description/description.h"
#include "raas_receiver/placement/rules/rule_table.h"

namespace lockstep::placement {

using TensorList = std::vector<const model::TensorMeta*>;

// What an expert stack is made of. Either `stacked`, or a list for every expert.
struct ExpertTensors {
  std::vector<TensorList> routed;  // by expert, those of ParameterRule::tensors
  const model::TensorMeta* stacked = nullptr;
  TensorList shared;  // those of ParameterRule::shared; none: not fused

  uint64_t experts() const { return stacked != nullptr ? stacked->shape[0] : routed.size(); }
};

// Give `parameter`, named already, its dtype, shape, contiguous strides, slices and padding. kBadData names a tensor of
// wrong rank, dtype or shape, or one that the groups of `place` cannot share. REQUIRES at least one tensor.
Status CutTensors(const ParameterRule& row, const TensorList& tensors, const EngineRules& engine,
                  const EnginePlace& place, EngineParameter& parameter);
Status CutExperts(const ParameterRule& row, const ExpertTensors& tensors, const EngineRules& engine,
                  const EnginePlace& place, EngineParameter& parameter);

// Which of `experts` a rank has: [first, first + count).
struct ExpertRange {
  uint64_t first = 0;
  uint64_t count = 0;
};
Result<ExpertRange> LocalExperts(uint64_t experts, GroupPlace group, bool uneven);

// kBadData: the tensor, its shape, and `what` is wrong with it.
Status WrongTensor(const model::TensorMeta& tensor, std::string_view what);

}  // namespace lockstep::placement

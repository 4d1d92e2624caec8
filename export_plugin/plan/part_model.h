// Internal to plan: what one part of all ranks' descriptions describes, before the parts are put together.
#pragma once

#include <vector>

#include "export_plugin/plan/shard_description.h"

namespace lockstep::plan {

struct PartModel {
  layout::TrainingModel model;                         // indices count within the part; no holdings, no offsets
  std::vector<std::vector<layout::Holding>> holdings;  // by rank, in the order of its description
};

// REQUIRES all of the same kind, one a rank.
Result<PartModel> BuildMegatronPart(const std::vector<const MegatronDescription*>& ranks);
Result<PartModel> BuildTensorPart(const std::vector<const std::vector<TensorDescription>*>& ranks);

}  // namespace lockstep::plan

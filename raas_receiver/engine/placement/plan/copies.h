// Internal to the plan: from the parts of a rank's parameters to what is written into its memories: copies, and zeros
// where nothing is copied.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/layout/strided_copy.h"
#include "common/model/layout.h"
#include "raas_receiver/engine/placement/plan/parameter_parts.h"
#include "raas_receiver/engine/placement/plan/rank_placement.h"

namespace lockstep::engine {

// Of one engine: counts the copies of all its ranks.
class CopyBuilder {
 public:
  // `layout` outlives it.
  explicit CopyBuilder(const model::ModelLayout& layout) : layout_(layout) {}

  // Of one rank. REQUIRES parts of one parameter to follow one another. kBadData names the parameter that takes too
  // many copies.
  Result<RankPlacement> Place(std::span<const ParameterPart> parts);

 private:
  using Lists = std::vector<std::vector<layout::StridedCopy>>;  // by memory

  Status Append(const ParameterPart& part);
  Status AppendTo(Lists& lists, const ParameterPart& part, const layout::Pieces& pieces,
                  const layout::TensorView& source, const layout::TensorView& target);

  const model::ModelLayout& layout_;
  uint64_t count_ = 0;
  // Of the rank.
  Lists copies_;
  Lists zeros_;  // of which only the targets count
  // Of the part before.
  const EngineParameter* parameter_ = nullptr;
  layout::TensorView view_;
  uint64_t count_of_parameter_ = 0;
};

}  // namespace lockstep::engine

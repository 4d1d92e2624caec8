// Internal to the plan: from the parameters' parts to what is written into each target buffer: copies, and
// zeros where nothing is copied.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/layout/strided_copy.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/plan/parameter_parts.h"

namespace lockstep::placement {

class CopyBuilder {
 public:
  // `layout` outlives it.
  CopyBuilder(const model::ModelLayout& layout, size_t buffers) : layout_(layout), copies_(buffers), zeros_(buffers) {}

  // REQUIRES parts of one parameter to follow one another. kBadData names the parameter that takes too many copies.
  Status Append(const ParameterPart& part);

  // By buffer, by rising target.
  std::vector<std::vector<layout::StridedCopy>> TakeCopies();
  std::vector<std::vector<StridedRange>> TakeZeros();

 private:
  using Lists = std::vector<std::vector<layout::StridedCopy>>;  // by buffer

  Status AppendTo(Lists& lists, const ParameterPart& part, const layout::Pieces& pieces,
                  const layout::TensorView& source, const layout::TensorView& target);

  const model::ModelLayout& layout_;
  Lists copies_;
  Lists zeros_;  // of which only the targets count
  uint64_t count_ = 0;
  // Of the part before.
  const EngineParameter* parameter_ = nullptr;
  layout::TensorView view_;
  uint64_t count_of_parameter_ = 0;
};

}  // namespace lockstep::placement

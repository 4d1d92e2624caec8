// Internal to the plan: whether the ranks together take every element of a tensor.
#pragma once

#include <span>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/engine/placement/plan/parameter_parts.h"

namespace lockstep::engine {

// Whether `parts`, of `tensor`, have every element of it; they may share some. kBadData names the first that none has.
Status CheckTaken(const model::TensorMeta& tensor, std::span<const ParameterPart* const> parts);

}  // namespace lockstep::engine

// Modules by the names of their tensors, as HuggingFace has them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/model/layout.h"

namespace lockstep::model {

// The module that has this tensor as its weight; no value for other tensors.
std::optional<std::string_view> ModuleOf(const TensorMeta& tensor);

// The module that engines make of this one and others: of q, k and v, or of gate and up. Its own name where there are
// no others. Their weights may have to share a scale.
std::string FusedModule(std::string_view module);

}  // namespace lockstep::model

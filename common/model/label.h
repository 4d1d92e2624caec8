// A version's label: what its trainer calls it, such as its step. It goes where the version goes and is shown beside
// the number; it identifies nothing, and any number of versions may have the same.
#pragma once

#include <cstddef>
#include <string_view>

#include "common/base/status.h"

namespace lockstep::model {

inline constexpr size_t kMaxLabel = 64;  // bytes

// kBadData: longer than kMaxLabel, no UTF-8, or with control characters. Empty is no label, and fine.
Status CheckLabel(std::string_view label);

}  // namespace lockstep::model

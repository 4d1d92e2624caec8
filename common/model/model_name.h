// The rule for names of models: a model's name is also a directory's name, on both ends.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace lockstep::model {

inline constexpr size_t kMaxModelName = 128;

// "[A-Za-z0-9._-]{1,128}", and neither "." nor "..". kBadData otherwise.
Status CheckModelName(std::string_view model);

}  // namespace lockstep::model

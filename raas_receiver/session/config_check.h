// Whether the config.json that engines load a version with is of its tensors: an asset may be another model's.
#pragma once

#include <string>
#include <string_view>

#include "common/model/layout.h"

namespace lockstep::session {

// How the embedding that `config`, a HuggingFace configuration, describes differs from that of `layout`, as a sentence.
// Empty: it does not, or one of them has none.
std::string ConfigMismatch(std::string_view config, const model::ModelLayout& layout);

// Logs that of config.json in `directory`, if there is one, which publishes a version of `model`.
void WarnOfConfig(const std::string& model, const std::string& directory, const model::ModelLayout& layout);

}  // namespace lockstep::session

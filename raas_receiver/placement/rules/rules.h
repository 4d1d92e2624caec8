// What an engine's parameters are made of, by engine and model family: tables, expanded against a HuggingFace layout.
//
// Shapes come from the layout, so no configuration is needed but a rank's place (and the number of key/value heads,
// where there are more ranks than those). docs/placement.md shows the tables.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/description/description.h"

namespace lockstep::placement {

// Gives the parameters of `description` the slices and padding that the rules of its place say. Only an engine
// "described" brings its own. A rank may have some of the layers (pipelines), and a head of its own or none where the
// model ties it. Returns the tensors that this rank need not take; another rank may take them.
// kBadData names a parameter that no rule knows, or one that is missing among its neighbours, or one that has another
// dtype (but for IsWidened) or shape than its rule says. The engine has then repacked or quantised that one, and must
// take versions from the directory; or the trainer publishes float32.
Result<std::vector<std::string>> CompleteDescription(const model::ModelLayout& layout, RankDescription& description);

// The same for all ranks of an engine. Answers the tensors that none of them takes. An error names the rank, or the
// tensors that no parameter takes, where neither rules nor `ignore` of a rank allow that.
Result<std::vector<std::string>> CompleteDescriptions(const model::ModelLayout& layout,
                                                      std::vector<RankDescription>& ranks);

// "sglang: deepseek_v3, glm4, ...": for messages and --help.
std::string KnownEngines();

}  // namespace lockstep::placement

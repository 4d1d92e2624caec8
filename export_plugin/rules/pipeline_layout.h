// Megatron's pipeline layout string: "Et*3|(tt|)*2,m|L" says what each pipeline stage builds, in the order of the
// model.
//
// E embedding, t a decoder layer, m an MTP layer, L the loss (head); `|` ends a stage, x*n repeats a character,
// (xy)*n a group without inner parentheses, commas mean nothing. Stage i of the string is virtual stage i / pipeline of
// pipeline rank i % pipeline.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace lockstep::rules {

// The layers that one stage of the string builds.
struct LayoutStage {
  uint32_t layers = 0;
  uint32_t mtp_layers = 0;
};

// The stages of `layout`, a multiple of `pipeline` of them. kBadData says what is no layout of a model: a stray
// character, an embedding or loss that is not the first or last of all, a decoder layer after an MTP layer, MTP layers
// in several stages or before their rank's last, or on the first rank behind the embedding's stage.
Result<std::vector<LayoutStage>> ParsePipelineLayout(std::string_view layout, uint32_t pipeline);

}  // namespace lockstep::rules

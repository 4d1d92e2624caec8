// Which part of a model a layout is. A model whose trainer spans several hosts is published in parts: each host's agent
// has one, under the model's name (FORMAT.md). For the agents, and for receivers, which join parts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/model/layout.h"

namespace lockstep::model {

// The attachment that makes a layout a part: {"part": 0, "parts": 4}.
inline constexpr std::string_view kPartAttachment = "lockstep_part.json";
inline constexpr uint32_t kMaxParts = 1024;

struct PartNumber {
  uint32_t part = 0;   // below `parts`
  uint32_t parts = 1;  // that make the whole
};

// The attachment's text.
std::string PartText(const PartNumber& number);
// Nothing: the layout is of a whole model. kBadData: the attachment is not as it should be.
Result<std::optional<PartNumber>> PartOf(const ModelLayout& layout);

}  // namespace lockstep::model

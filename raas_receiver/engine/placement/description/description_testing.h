// For tests and benchmarks: descriptions as engines write them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/document_testing.h"
#include "common/json/json_reader.h"
#include "raas_receiver/engine/placement/description/description.h"

namespace lockstep::engine {

using OrderedJson = nlohmann::ordered_json;

inline Result<RankDescription> ParseDescription(std::string_view text) {
  LS_ASSIGN_OR_RETURN(const json::Json document, json::ParseJson(text, {.key = "description"}, uint64_t{1} << 28));
  return ReadDescription(document);
}

inline OrderedJson ToJson(const EngineParameter& parameter) {
  OrderedJson json = {
      {"name", parameter.name}, {"dtype", model::FindDType(parameter.dtype)->name}, {"shape", parameter.shape}};
  if (parameter.strides != layout::ContiguousStrides(parameter.shape)) json["strides"] = parameter.strides;
  if (parameter.memory != 0) json["memory"] = parameter.memory;
  json["offset"] = parameter.offset;
  for (const Slice& slice : parameter.slices) {
    json["slices"].push_back(
        {{"tensor", slice.tensor}, {"from", slice.from}, {"shape", slice.shape}, {"at", slice.at}});
  }
  for (const Padding& padding : parameter.padding) {
    json["padding"].push_back({{"at", padding.at}, {"shape", padding.shape}});
  }
  return json;
}

// The block "```json NAME" of FORMAT.md.
inline std::string FormatExample(std::string_view name) {
  return DocumentBlock("raas_receiver/engine/placement/description/FORMAT.md", "json", name);
}

// The text that ParseDescription gives `description` back for.
inline std::string ToJson(const RankDescription& description) {
  OrderedJson parameters = OrderedJson::array();
  for (const EngineParameter& parameter : description.parameters) parameters.push_back(ToJson(parameter));
  OrderedJson document = {{"format", 4},
                          {"rank", description.rank},
                          {"world", description.world},
                          {"memories", description.memories},
                          {"parameters", std::move(parameters)}};
  if (description.layout) document["layout"] = ToHex(*description.layout);
  if (!description.ignore.empty()) document["ignore"] = description.ignore;
  return document.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace lockstep::engine

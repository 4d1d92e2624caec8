#include "raas_receiver/placement/rules/rules.h"

#include <utility>

#include "common/layout/piece.h"
#include "raas_receiver/placement/rules/expansion.h"

namespace lockstep::placement {
namespace {

constexpr uint64_t kAlignment = 256;

uint64_t BytesOf(const EngineParameter& parameter) {
  return layout::ElementCount(parameter.shape) * model::FindDType(parameter.dtype)->bits / 8;
}

}  // namespace

Result<ExpandedRules> ExpandRules(const model::ModelLayout& layout, const EnginePlace& place) {
  LS_ASSIGN_OR_RETURN(const auto index, LayoutIndex::Create(layout));
  LS_ASSIGN_OR_RETURN(Expansion expansion, Expand(index, place));
  ExpandedRules rules;
  rules.unused = std::move(expansion.unused);
  rules.parameters.reserve(expansion.parameters.size());
  uint64_t offset = 0;
  for (ExpandedParameter& expanded : expansion.parameters) {
    if (expanded.tied) continue;
    expanded.parameter.offset = offset;
    offset += (BytesOf(expanded.parameter) + kAlignment - 1) / kAlignment * kAlignment;
    rules.parameters.push_back(std::move(expanded.parameter));
  }
  return rules;
}

std::string KnownEngines() {
  std::string text = "described, huggingface";
  for (const EngineRules* engine : Engines()) {
    text += "; ";
    text += engine->name;
    for (const FamilyRules& family : engine->families) {
      text += &family == engine->families.data() ? ": " : ", ";
      text += family.model_type;
    }
  }
  return text;
}

}  // namespace lockstep::placement

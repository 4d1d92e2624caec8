#include "export_plugin/rules/slots.h"

#include "common/base/text.h"
#include "export_plugin/rules/rows.h"

namespace lockstep::rules {
namespace {

bool IsWhole(RowScope where) {
  return where == RowScope::kModel || where == RowScope::kEnd;
}

std::string WithExpert(std::string_view name, uint64_t expert) {
  const size_t place = name.find("{}");
  if (place == std::string_view::npos) return std::string(name);
  return Cat(name.substr(0, place), expert, name.substr(place + 2));
}

// The rows that `wanted` accepts and the configuration asks for.
template <typename Wanted>
std::vector<ParameterSlot> SlotsOf(const Family& family, const ModelConfig& config, uint64_t layer, Wanted wanted) {
  std::vector<ParameterSlot> slots;
  for (const std::span<const FamilyRow> rows : family.rows) {
    bool before = false;  // whether the model has the row before
    for (const FamilyRow& row : rows) {
      const bool here = wanted(row.where) && row.when.Holds(config);
      if (here) slots.push_back({.row = &row, .layer = layer, .joins = before && row.with_previous});
      before = here;
    }
  }
  return slots;
}

}  // namespace

bool IsMoe(const ModelConfig& config, uint64_t layer) {
  return layer < config.layers ? config.moe_layers[layer] : config.moe_layers.back();
}

bool InLayer(RowScope where, const ModelConfig& config, uint64_t layer) {
  switch (where) {
    case RowScope::kLayer:
      return true;
    case RowScope::kDense:
      return !IsMoe(config, layer);
    case RowScope::kMoe:
    case RowScope::kExpert:
      return IsMoe(config, layer);
    case RowScope::kMtpLayer:
      return layer >= config.layers;
    case RowScope::kModel:
    case RowScope::kEnd:
      return false;
  }
  return false;
}

std::vector<ParameterSlot> WholeSlots(const Family& family, const ModelConfig& config, RowScope where) {
  return SlotsOf(family, config, 0, [&](RowScope candidate) { return candidate == where; });
}

std::vector<ParameterSlot> LayerSlots(const Family& family, const ModelConfig& config, uint64_t layer,
                                      uint64_t experts) {
  const auto once = SlotsOf(family, config, layer, [&](RowScope where) { return InLayer(where, config, layer); });
  std::vector<ParameterSlot> slots;
  for (size_t begin = 0; begin < once.size();) {
    size_t end = begin;  // of a run of experts' rows
    while (end < once.size() && once[end].row->where == RowScope::kExpert) ++end;
    for (uint64_t expert = 0; end > begin && expert < experts; ++expert) {
      for (size_t i = begin; i < end; ++i) slots.push_back(once[i]), slots.back().expert = expert;
    }
    if (end == begin) slots.push_back(once[end++]);
    begin = end;
  }
  return slots;
}

std::string McoreName(const ParameterSlot& slot, const ModelConfig& config, bool fused_norms) {
  std::string_view names = slot.row->mcore;
  const std::string_view alternative = fused_norms ? NextPart(names) : names.substr(names.rfind('|') + 1);
  const std::string name = WithExpert(alternative, slot.expert);
  if (IsWhole(slot.row->where)) return name;
  if (slot.layer < config.layers) return Cat("decoder.layers.", slot.layer, ".", name);
  const bool inner = slot.row->where != RowScope::kMtpLayer;
  return Cat("mtp.layers.", slot.layer - config.layers, inner ? ".transformer_layer." : ".", name);
}

std::string SourceName(const ParameterSlot& slot, const ModelConfig& config) {
  return McoreName(slot, config, /*fused_norms=*/true);
}

std::string HuggingFaceName(const ParameterSlot& slot, std::string_view name) {
  if (IsWhole(slot.row->where)) return std::string(name);
  return Cat("model.layers.", slot.layer, ".", WithExpert(name, slot.expert));
}

}  // namespace lockstep::rules

// Slots: the rows of a family laid out over one model: every parameter, in export order.
//
// Layers are numbered through: [0, layers) are the decoder's, [layers, layers + mtp_layers) the MTP layers', as
// HuggingFace does it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "export_plugin/rules/family.h"
#include "export_plugin/rules/model_config.h"

namespace lockstep::rules {

struct ParameterSlot {
  const FamilyRow* row = nullptr;
  uint64_t layer = 0;   // of rows that belong to one
  uint64_t expert = 0;  // of kExpert rows
  bool joins = false;   // the bucket of the slot before it
};

// Whether the layer has experts. An MTP layer is built like the decoder's last one.
bool IsMoe(const ModelConfig& config, uint64_t layer);
// Whether a row belongs to the layer, by its kind alone (FamilyRow::when is not asked).
bool InLayer(RowScope where, const ModelConfig& config, uint64_t layer);

// The rows of `where` (kModel or kEnd) that the model has.
std::vector<ParameterSlot> WholeSlots(const Family& family, const ModelConfig& config, RowScope where);
// The rows of layer `layer`, with experts [0, experts).
std::vector<ParameterSlot> LayerSlots(const Family& family, const ModelConfig& config, uint64_t layer,
                                      uint64_t experts);

// The slot's name in Megatron-core with Transformer Engine's layer spec (`fused_norms`) or the local one.
std::string McoreName(const ParameterSlot& slot, const ModelConfig& config, bool fused_norms);
// The name of the slot's source: McoreName with Transformer Engine's layer spec and the expert's global number.
std::string SourceName(const ParameterSlot& slot, const ModelConfig& config);
// `name` of FamilyRow::hf as it is in the checkpoint.
std::string HuggingFaceName(const ParameterSlot& slot, std::string_view name);

}  // namespace lockstep::rules

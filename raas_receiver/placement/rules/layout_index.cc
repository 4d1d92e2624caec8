#include "raas_receiver/placement/rules/layout_index.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>

#include "common/base/text.h"
#include "raas_receiver/placement/rules/rule_table.h"

namespace lockstep::placement {
namespace {

// What only a layer for multi-token prediction has.
constexpr std::array<std::string_view, 4> kMtpParts = {"eh_proj.", "enorm.", "hnorm.", "shared_head."};
constexpr std::string_view kExperts = ".experts.";
constexpr size_t kNeighbours = 3;  // an expert's tensors

// The number, as engines write it, that `text` starts with, followed by a dot; `text` then begins behind that.
std::optional<uint64_t> TakeNumber(std::string_view& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != '.') return std::nullopt;
  const size_t digits = static_cast<size_t>(end - text.data());
  if (digits > 1 && text[0] == '0') return std::nullopt;
  text.remove_prefix(digits + 1);
  return number;
}

void AddName(std::string_view name, LayerFacts& layer) {
  for (const std::string_view part : kMtpParts) layer.mtp = layer.mtp || name.starts_with(part);
  const size_t experts = name.find(kExperts);
  if (experts == std::string_view::npos) return;
  layer.sparse = true;
  std::string_view rest = name.substr(experts + kExperts.size());
  if (const std::optional<uint64_t> number = TakeNumber(rest)) layer.experts = std::max(layer.experts, *number + 1);
}

// Layers from 0 without a gap, those of the decoder first.
Status TakeLayers(const std::map<uint64_t, LayerFacts>& found, std::vector<LayerFacts>& layers) {
  layers.reserve(found.size());
  for (const auto& [number, layer] : found) {
    if (number != layers.size()) {
      return {ErrorCode::kBadData,
              Cat("the model has layer ", number, " (", kLayerPrefix, number, ".) and no layer ", layers.size())};
    }
    if (!layer.mtp && !layers.empty() && layers.back().mtp) {
      return {ErrorCode::kBadData, Cat("layer ", number, " of the decoder comes behind layer ", number - 1,
                                       ", which is one for multi-token prediction")};
    }
    layers.push_back(layer);
  }
  return OkStatus();
}

}  // namespace

Result<LayoutIndex> LayoutIndex::Create(const model::ModelLayout& layout) {
  LayoutIndex index;
  index.tensors_ = &layout.tensors();
  std::map<uint64_t, LayerFacts> found;
  index.by_name_.reserve(layout.tensors().size());
  for (size_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    std::string_view name = layout.tensors()[tensor].name;
    index.by_name_.emplace(name, tensor);
    if (!name.starts_with(kLayerPrefix)) continue;
    name.remove_prefix(kLayerPrefix.size());
    const std::optional<uint64_t> number = TakeNumber(name);
    if (!number) continue;
    LayerFacts& layer = found[*number];
    layer.tensors.push_back(tensor);
    AddName(name, layer);
  }
  LS_RETURN_IF_ERROR(TakeLayers(found, index.layers_));
  return index;
}

size_t LayoutIndex::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? kNone : found->second;
}

size_t LayoutIndex::FindAfter(size_t before, std::string_view name) const {
  const size_t end = std::min(tensors_->size(), before + 1 + kNeighbours);
  for (size_t tensor = before + 1; tensor < end; ++tensor) {
    if ((*tensors_)[tensor].name == name) return tensor;
  }
  return Find(name);
}

}  // namespace lockstep::placement

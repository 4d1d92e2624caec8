#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/base/text.h"
#include "common/layout/piece.h"
#include "raas_receiver/placement/rules/expansion.h"
#include "raas_receiver/placement/rules/layout_index.h"
#include "raas_receiver/placement/rules/rules.h"

namespace lockstep::placement {
namespace {

using Names = std::vector<std::string>;

std::string FormOf(model::DType dtype, const layout::Extents& shape) {
  return Cat(model::FindDType(dtype)->name, " ", layout::ShapeText(shape));
}

// Whether no tensor of the model has fewer bits than float32: its trainer did not say that they are to be rounded.
bool IsFloat32(const model::ModelLayout& layout) {
  return std::ranges::none_of(layout.tensors(), [](const model::TensorMeta& tensor) {
    return tensor.dtype == model::DType::kBF16 || tensor.dtype == model::DType::kF16;
  });
}

// Whether `parameter` has the form that the model gives it, or is widened.
Status CheckForm(const EngineParameter& parameter, model::DType dtype, const layout::Extents& shape,
                 const model::ModelLayout& layout, std::string_view hint) {
  const bool holds = parameter.dtype == dtype || IsWidened(dtype, parameter.dtype);
  if (holds && parameter.shape == shape) return OkStatus();
  const bool rounds = parameter.dtype == model::DType::kBF16 || parameter.dtype == model::DType::kF16;
  if (dtype == model::DType::kF32 && rounds && parameter.shape == shape && IsFloat32(layout)) {
    const std::string_view own = model::FindDType(parameter.dtype)->name;
    const std::string remedy =
        parameter.dtype == model::DType::kBF16 ? "publish with dtype=torch.bfloat16" : Cat("publish ", own, " tensors");
    return {ErrorCode::kBadData,
            Cat("parameter ", parameter.name, ": the trainer publishes F32, the engine has ", own, "; ", remedy)};
  }
  return {ErrorCode::kBadData,
          Cat("parameter ", parameter.name, " is ", FormOf(parameter.dtype, parameter.shape), " and should be ",
              FormOf(dtype, shape), hint,
              ": the engine has repacked, converted or quantised it, or its place is described wrongly; it must take "
              "versions from the directory")};
}

Names TensorsBut(const model::ModelLayout& layout, const std::unordered_set<std::string_view>& taken) {
  Names rest;
  for (const model::TensorMeta& tensor : layout.tensors()) {
    if (!taken.contains(tensor.name)) rest.push_back(tensor.name);
  }
  return rest;
}

Names TensorsWithoutSlice(const model::ModelLayout& layout, const RankDescription& description) {
  std::unordered_set<std::string_view> taken;
  for (const EngineParameter& parameter : description.parameters) {
    for (const Slice& slice : parameter.slices) taken.insert(slice.tensor);
  }
  return TensorsBut(layout, taken);
}

Result<Names> CompleteWhole(const model::ModelLayout& layout, RankDescription& description) {
  std::unordered_map<std::string_view, const model::TensorMeta*> tensors;
  for (const model::TensorMeta& tensor : layout.tensors()) tensors.emplace(tensor.name, &tensor);
  std::unordered_set<std::string_view> taken;
  for (EngineParameter& parameter : description.parameters) {
    const auto found = tensors.find(parameter.name);
    if (found == tensors.end()) {
      return Status(ErrorCode::kBadData, Cat("parameter ", parameter.name, " is no tensor of the model"));
    }
    const model::TensorMeta& tensor = *found->second;
    LS_RETURN_IF_ERROR(CheckForm(parameter, tensor.dtype, tensor.shape, layout, ""));
    const layout::Extents origin(tensor.shape.size());
    parameter.slices = {{tensor.name, origin, tensor.shape, origin}};
    taken.insert(tensor.name);
  }
  return TensorsBut(layout, taken);
}

// What a rank lists against what its place has.
class Matcher {
 public:
  // `layout` outlives it.
  Matcher(const model::ModelLayout& layout, Expansion expansion)
      : layout_(layout), expansion_(std::move(expansion)), listed_(expansion_.parameters.size()) {
    for (size_t k = 0; k < expansion_.parameters.size(); ++k) {
      by_name_.emplace(expansion_.parameters[k].parameter.name, k);
      for (const std::string& name : expansion_.parameters[k].other_names) by_name_.emplace(name, k);
    }
  }

  Status Complete(const EnginePlace& place, EngineParameter& parameter) {
    const auto found = by_name_.find(parameter.name);
    if (found == by_name_.end()) {
      return {ErrorCode::kBadData,
              Cat("no rule of ", place.engine, "'s ", place.family, " knows parameter ", parameter.name, " ",
                  FormOf(parameter.dtype, parameter.shape), ": the engine must take versions from the directory")};
    }
    if (listed_[found->second]) {
      return {ErrorCode::kBadData, Cat("parameter ", parameter.name, " is there twice, perhaps under its older name")};
    }
    listed_[found->second] = true;
    ExpandedParameter& expanded = expansion_.parameters[found->second];
    const bool heads = expanded.cut == ParameterCut::kQkv && place.key_value_heads == 0;
    LS_RETURN_IF_ERROR(CheckForm(parameter, expanded.parameter.dtype, expanded.parameter.shape, layout_,
                                 heads ? " (key_value_heads is not given)" : ""));
    parameter.slices = std::move(expanded.parameter.slices);
    parameter.padding = std::move(expanded.parameter.padding);
    return OkStatus();
  }

  // A parameter that a rank forgets would keep its old values while all others follow. So a rank has layers whole or
  // not at all (pipelines), and the rest too when it has all layers.
  Status CheckNoneForgotten() const {
    std::vector<bool> has_layer(expansion_.layers);
    for (size_t k = 0; k < listed_.size(); ++k) {
      const uint32_t layer = expansion_.parameters[k].layer;
      if (listed_[k] && layer != kNoLayer) has_layer[layer] = true;
    }
    const bool has_all = std::ranges::find(has_layer, false) == has_layer.end();
    for (size_t k = 0; k < listed_.size(); ++k) {
      const ExpandedParameter& expanded = expansion_.parameters[k];
      const bool wanted = expanded.layer == kNoLayer ? has_all : has_layer[expanded.layer];
      if (!wanted || listed_[k] || expanded.tied) continue;
      return {ErrorCode::kBadData, Cat("parameter ", expanded.parameter.name, " ",
                                       FormOf(expanded.parameter.dtype, expanded.parameter.shape),
                                       " is not described, though the rank has its neighbours")};
    }
    return OkStatus();
  }

  Names TakeUnused() { return std::move(expansion_.unused); }

 private:
  const model::ModelLayout& layout_;
  Expansion expansion_;
  std::vector<bool> listed_;  // by parameter of the expansion
  std::unordered_map<std::string_view, size_t> by_name_;
};

// `index` is made when it is first needed: all ranks of an engine share it.
Result<Names> CompleteByRules(const model::ModelLayout& layout, std::optional<LayoutIndex>& index,
                              RankDescription& description) {
  if (!index) {
    LS_ASSIGN_OR_RETURN(index, LayoutIndex::Create(layout));
  }
  LS_ASSIGN_OR_RETURN(Expansion expansion, Expand(*index, description.place));
  Matcher matcher(layout, std::move(expansion));
  for (EngineParameter& parameter : description.parameters) {
    LS_RETURN_IF_ERROR(matcher.Complete(description.place, parameter));
  }
  LS_RETURN_IF_ERROR(matcher.CheckNoneForgotten());
  return matcher.TakeUnused();
}

Result<Names> Complete(const model::ModelLayout& layout, std::optional<LayoutIndex>& index,
                       RankDescription& description) {
  if (description.place.engine == "described") return TensorsWithoutSlice(layout, description);
  for (const EngineParameter& parameter : description.parameters) {
    if (parameter.slices.empty() && parameter.padding.empty()) continue;
    return Status(ErrorCode::kBadData, Cat("parameter ", parameter.name,
                                           " says what it is made of, which only an engine \"described\" does"));
  }
  if (description.place.engine == "huggingface") return CompleteWhole(layout, description);
  return CompleteByRules(layout, index, description);
}

bool HasRules(const RankDescription& rank) {
  return rank.place.engine != "huggingface" && rank.place.engine != "described";
}

bool Ignores(const RankDescription& rank, const std::string& tensor) {
  return std::ranges::any_of(rank.ignore,
                             [&](const auto& pattern) { return ::fnmatch(pattern.c_str(), tensor.c_str(), 0) == 0; });
}

// Where no rules say what an engine leaves out, it says so itself.
Status CheckUnused(const Names& unused, const std::vector<RankDescription>& ranks) {
  if (std::ranges::any_of(ranks, HasRules)) return OkStatus();
  Names refused;
  for (const std::string& name : unused) {
    if (std::ranges::none_of(ranks, [&](const RankDescription& rank) { return Ignores(rank, name); }))
      refused.push_back(name);
  }
  if (refused.empty()) return OkStatus();
  const size_t more = refused.size() - 1;
  return {ErrorCode::kBadData, Cat("no parameter of the engine takes tensor ", refused[0], " of the model",
                                   more == 0 ? "" : Cat(", nor ", more, " others"),
                                   ": its configuration is an older one, or ties what the trainer does not; where it "
                                   "is to do without, say so by "
                                   "ignore=[\"",
                                   refused[0], "\"], which takes patterns")};
}

}  // namespace

Result<std::vector<std::string>> CompleteDescription(const model::ModelLayout& layout, RankDescription& description) {
  std::optional<LayoutIndex> index;
  return Complete(layout, index, description);
}

Result<std::vector<std::string>> CompleteDescriptions(const model::ModelLayout& layout,
                                                      std::vector<RankDescription>& ranks) {
  std::optional<LayoutIndex> index;
  std::unordered_map<std::string, size_t> leaving;  // ranks, by tensor
  for (RankDescription& rank : ranks) {
    Result<Names> unused = Complete(layout, index, rank);
    if (!unused.ok()) return unused.status().WithContext(Cat("rank ", rank.rank));
    for (std::string& name : *unused) ++leaving[std::move(name)];
  }
  Names unused;
  for (const model::TensorMeta& tensor : layout.tensors()) {
    const auto found = leaving.find(tensor.name);
    if (found != leaving.end() && found->second == ranks.size()) unused.push_back(tensor.name);
  }
  LS_RETURN_IF_ERROR(CheckUnused(unused, ranks));
  return unused;
}

}  // namespace lockstep::placement

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "common/base/text.h"
#include "raas_receiver/placement/rules/cut.h"
#include "raas_receiver/placement/rules/expansion.h"
#include "raas_receiver/placement/rules/layout_index.h"
#include "raas_receiver/placement/rules/rules.h"

namespace lockstep::placement {
namespace {

constexpr std::array<const EngineRules*, 2> kEngines = {&kSglang, &kVllm};

Status CheckGroup(std::string_view name, GroupPlace group) {
  if (group.size > 0 && group.size <= kMaxEngineRanks && group.rank < group.size) return OkStatus();
  return {ErrorCode::kBadData, Cat("rank ", group.rank, " of a group ", name, " of ", group.size, " ranks")};
}

struct RuleTable {
  const EngineRules* engine;
  const FamilyRules* family;
};

Result<RuleTable> FindTable(const EnginePlace& place) {
  for (const EngineRules* engine : kEngines) {
    if (engine->name != place.engine) continue;
    for (const FamilyRules& family : engine->families) {
      if (family.model_type == place.family) return RuleTable{engine, &family};
    }
  }
  return Status(ErrorCode::kNotFound, Cat("no rules for engine \"", place.engine, "\" and family \"", place.family,
                                          "\"; there are ", KnownEngines()));
}

// Fills in the rows of one table for one rank.
class Expander {
 public:
  Expander(const LayoutIndex& index, RuleTable table, const EnginePlace& place)
      : index_(index), table_(table), place_(place), taken_(index.tensors().size()) {}

  Result<Expansion> Run();

 private:
  // A layer, or what is outside of them.
  struct Part {
    std::string prefix;
    uint32_t layer = kNoLayer;
    const LayerFacts* facts = nullptr;
  };

  Status CheckFusing() const;
  Status ExpandPart(const Part& part, RuleScope where);
  Status ExpandRow(const Part& part, const ParameterRule& row);
  bool Applies(const Part& part, const ParameterRule& row, RuleScope where);
  Status CutRow(const Part& part, const ParameterRule& row, ExpandedParameter& expanded);
  Result<TensorList> TakeAll(std::string_view prefix, std::string_view names);
  Result<ExpertTensors> TakeExperts(const Part& part, const ParameterRule& row);
  const model::TensorMeta* Take(std::string_view prefix, std::string_view name, uint64_t expert = 0);
  const std::string& FullName(std::string_view prefix, std::string_view name, uint64_t expert = 0);
  Status TakeTheRest();

  const LayoutIndex& index_;
  const RuleTable table_;
  const EnginePlace& place_;
  std::vector<bool> taken_;  // by tensor
  size_t last_taken_ = 0;
  std::string name_;  // of FullName
  Expansion expansion_;
};

Result<Expansion> Expander::Run() {
  LS_RETURN_IF_ERROR(CheckFusing());
  const Part model;
  LS_RETURN_IF_ERROR(ExpandPart(model, RuleScope::kModel));
  for (const LayerFacts& facts : index_.layers()) {
    if (facts.mtp && table_.family->mtp) break;
    const uint32_t layer = expansion_.layers++;
    const Part part{Cat(kLayerPrefix, layer, "."), layer, &facts};
    LS_RETURN_IF_ERROR(ExpandPart(part, RuleScope::kLayer));
  }
  LS_RETURN_IF_ERROR(ExpandPart(model, RuleScope::kEnd));
  LS_RETURN_IF_ERROR(TakeTheRest());
  return std::move(expansion_);
}

Status Expander::CheckFusing() const {
  if (!place_.fused_shared_experts) return OkStatus();
  for (const ParameterRules& rows : table_.family->rows) {
    if (std::ranges::any_of(rows, [](const ParameterRule& row) { return !row.shared.empty(); })) return OkStatus();
  }
  return {ErrorCode::kBadData, Cat(table_.engine->name, " never fuses shared experts of ", table_.family->model_type)};
}

Status Expander::ExpandPart(const Part& part, RuleScope where) {
  for (const ParameterRules& rows : table_.family->rows) {
    for (const ParameterRule& row : rows) {
      if (!Applies(part, row, where)) continue;
      if (Status status = ExpandRow(part, row); !status.ok()) {
        std::string_view names = row.parameter;
        return status.WithContext(Cat(table_.engine->name, " parameter ", part.prefix, NextPart(names)));
      }
    }
  }
  return OkStatus();
}

bool Expander::Applies(const Part& part, const ParameterRule& row, RuleScope where) {
  if (part.facts == nullptr && row.where != where) return false;
  if (part.facts != nullptr) {
    const RuleScope kind = part.facts->sparse ? RuleScope::kSparse : RuleScope::kDense;
    if (row.where != RuleScope::kLayer && row.where != kind) return false;
  }
  if (row.shared_expert && place_.fused_shared_experts) return false;
  if (row.when.empty()) return true;
  const bool absent = row.when.starts_with('!');
  return index_.Has(FullName(part.prefix, row.when.substr(absent ? 1 : 0))) != absent;
}

Status Expander::ExpandRow(const Part& part, const ParameterRule& row) {
  ExpandedParameter expanded{.cut = row.cut, .layer = part.layer};
  std::string_view names = row.parameter;
  expanded.parameter.name = part.prefix;
  expanded.parameter.name += NextPart(names);
  while (!names.empty()) expanded.other_names.push_back(Cat(part.prefix, NextPart(names)));
  LS_RETURN_IF_ERROR(CutRow(part, row, expanded));
  if (model::FindDType(expanded.parameter.dtype)->bits % 8 != 0) {
    return {ErrorCode::kBadData,
            "made of a packed type, which engines repack: it must take versions from the directory"};
  }
  expansion_.parameters.push_back(std::move(expanded));
  return OkStatus();
}

Status Expander::CutRow(const Part& part, const ParameterRule& row, ExpandedParameter& expanded) {
  if (row.cut == ParameterCut::kExpertGateUp || row.cut == ParameterCut::kExpertDown) {
    LS_ASSIGN_OR_RETURN(const ExpertTensors experts, TakeExperts(part, row));
    return CutExperts(row, experts, *table_.engine, place_, expanded.parameter);
  }
  expanded.tied = !row.tied.empty() && !index_.Has(FullName(part.prefix, row.tensors));
  LS_ASSIGN_OR_RETURN(const TensorList tensors, TakeAll(part.prefix, expanded.tied ? row.tied : row.tensors));
  return CutTensors(row, tensors, *table_.engine, place_, expanded.parameter);
}

Result<TensorList> Expander::TakeAll(std::string_view prefix, std::string_view names) {
  TensorList tensors;
  while (!names.empty()) {
    const model::TensorMeta* tensor = Take(prefix, NextPart(names));
    if (tensor == nullptr) return Status(ErrorCode::kBadData, Cat("the model has no tensor ", name_));
    tensors.push_back(tensor);
  }
  return tensors;
}

Result<ExpertTensors> Expander::TakeExperts(const Part& part, const ParameterRule& row) {
  ExpertTensors experts;
  if (place_.fused_shared_experts) {
    LS_ASSIGN_OR_RETURN(experts.shared, TakeAll(part.prefix, row.shared));
  }
  experts.stacked = Take(part.prefix, row.stacked);
  if (experts.stacked != nullptr) return experts;
  for (uint64_t expert = 0; expert < std::max<uint64_t>(part.facts->experts, 1); ++expert) {
    TensorList& tensors = experts.routed.emplace_back();
    for (std::string_view names = row.tensors; !names.empty();) {
      tensors.push_back(Take(part.prefix, NextPart(names), expert));
      if (tensors.back() == nullptr) return Status(ErrorCode::kBadData, Cat("the model has no tensor ", name_));
    }
  }
  return experts;
}

// Null when the model has none such.
const model::TensorMeta* Expander::Take(std::string_view prefix, std::string_view name, uint64_t expert) {
  const size_t tensor = index_.FindAfter(last_taken_, FullName(prefix, name, expert));
  if (tensor == LayoutIndex::kNone) return nullptr;
  last_taken_ = tensor;
  taken_[tensor] = true;
  return &index_.tensors()[tensor];
}

// Into name_, as a model has tens of thousands.
const std::string& Expander::FullName(std::string_view prefix, std::string_view name, uint64_t expert) {
  name_ = prefix;
  const size_t hole = name.find("{}");
  name_ += name.substr(0, hole);
  if (hole == std::string_view::npos) return name_;
  std::array<char, 20> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), expert).ptr;
  name_.append(digits.data(), end);
  name_ += name.substr(hole + 2);
  return name_;
}

// What no row took: layers that the engine leaves out, or an error.
Status Expander::TakeTheRest() {
  for (uint32_t layer = expansion_.layers; layer < index_.layers().size(); ++layer) {
    for (const size_t tensor : index_.layers()[layer].tensors) {
      taken_[tensor] = true;
      expansion_.unused.push_back(index_.tensors()[tensor].name);
    }
  }
  const auto rest = std::ranges::find(taken_, false);
  if (rest == taken_.end()) return OkStatus();
  const model::TensorMeta& tensor = index_.tensors()[static_cast<size_t>(rest - taken_.begin())];
  return {ErrorCode::kBadData, Cat("no rule of ", table_.engine->name, "'s ", table_.family->model_type,
                                   " takes tensor ", tensor.name, " of shape ", layout::ShapeText(tensor.shape))};
}

}  // namespace

std::string KnownEngines() {
  std::string text = "described, huggingface";
  for (const EngineRules* engine : kEngines) {
    text += "; ";
    text += engine->name;
    for (const FamilyRules& family : engine->families) {
      text += &family == engine->families.data() ? ": " : ", ";
      text += family.model_type;
    }
  }
  return text;
}

Result<Expansion> Expand(const LayoutIndex& index, const EnginePlace& place) {
  LS_ASSIGN_OR_RETURN(const RuleTable table, FindTable(place));
  LS_RETURN_IF_ERROR(CheckGroup("tensor", place.tensor));
  LS_RETURN_IF_ERROR(CheckGroup("expert", place.expert));
  LS_RETURN_IF_ERROR(CheckGroup("expert_tensor", place.expert_tensor));
  return Expander(index, table, place).Run();
}

}  // namespace lockstep::placement

#include <unordered_map>

#include "common/base/text.h"
#include "export_plugin/plan/part_model.h"

namespace lockstep::plan {
namespace {

// What engines keep fused comes in one message: leaf -> what it becomes part of.
std::string_view FusedLeaf(std::string_view leaf) {
  if (leaf == "q_proj" || leaf == "k_proj" || leaf == "v_proj") return "qkv_proj";
  if (leaf == "gate_proj" || leaf == "up_proj") return "gate_up_proj";
  if (leaf == "w1" || leaf == "w3") return "w13";
  if (leaf == "q_a_proj" || leaf == "kv_a_proj_with_mqa") return "qkv_a_proj";
  return leaf;
}

// "model.layers.3.self_attn.k_proj.weight" -> "model.layers.3.self_attn.qkv_proj": equal for tensors of one group.
std::string GroupKey(const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  const std::string_view module = std::string_view(tensor).substr(0, dot == std::string::npos ? tensor.size() : dot);
  const size_t leaf = module.rfind('.') + 1;  // npos + 1 is 0
  return Cat(module.substr(0, leaf), FusedLeaf(module.substr(leaf)));
}

// Gathers the tensors of the ranks as they are mentioned.
class TensorPart {
 public:
  Status AddRank(uint32_t rank, const std::vector<TensorDescription>& tensors) {
    std::vector<layout::Holding> holdings;
    holdings.reserve(tensors.size());
    for (const TensorDescription& tensor : tensors) {
      LS_ASSIGN_OR_RETURN(const uint32_t source, SourceOf(rank, tensor));
      holdings.push_back({.rank = rank, .source = source, .local_shape = tensor.local_shape, .pieces = tensor.boxes});
    }
    part_.holdings.push_back(std::move(holdings));
    return OkStatus();
  }

  PartModel Take() { return std::move(part_); }

 private:
  struct Mention {
    uint32_t rank;
    const TensorDescription* tensor;
  };

  Result<uint32_t> SourceOf(uint32_t rank, const TensorDescription& tensor) {
    const auto source = static_cast<uint32_t>(first_mentions_.size());
    const auto [known, is_new] = by_name_.emplace(tensor.name, source);
    if (is_new) {
      first_mentions_.push_back({rank, &tensor});
      LS_RETURN_IF_ERROR(AddSource(source, tensor));
      return source;
    }
    LS_RETURN_IF_ERROR(CheckSame(first_mentions_[known->second], {rank, &tensor}));
    layout::SourceTensor& mentioned = part_.model.sources[known->second];
    mentioned.frozen = mentioned.frozen && tensor.frozen;
    return known->second;
  }

  static Status CheckSame(const Mention& first, const Mention& other) {
    const auto differs = [&](std::string_view what, const std::string& of_first, const std::string& of_other) {
      return Status(ErrorCode::kBadData, Cat("tensor \"", first.tensor->name, "\": its ", what, " is ", of_first,
                                             " on rank ", first.rank, " and ", of_other, " on rank ", other.rank));
    };
    const TensorDescription& a = *first.tensor;
    const TensorDescription& b = *other.tensor;
    if (a.dtype != b.dtype) {
      return differs("dtype", std::string(model::FindDType(a.dtype)->name),
                     std::string(model::FindDType(b.dtype)->name));
    }
    if (a.shape != b.shape) return differs("shape", layout::ShapeText(a.shape), layout::ShapeText(b.shape));
    if (a.into != b.into) return differs("\"into\"", "one list", "another");
    return OkStatus();
  }

  Status AddSource(uint32_t source, const TensorDescription& tensor) {
    part_.model.sources.push_back({.name = tensor.name, .shape = tensor.shape, .frozen = tensor.frozen});
    if (tensor.into.empty()) {
      const uint32_t made = AddTensor(tensor.name, tensor.dtype, tensor.shape);
      part_.model.conversions.push_back({.source = source, .tensor = made, .pieces = layout::Whole(tensor.shape)});
    }
    for (const TensorDescription::Into& into : tensor.into) {
      LS_ASSIGN_OR_RETURN(const uint32_t made, TensorOf(tensor, into));
      const bool whole = into.at.empty();
      const size_t dims = tensor.shape.size();
      layout::Extents at = whole ? layout::Extents(dims, 0) : into.at;
      at.insert(at.begin(), dims - at.size(), 0);
      part_.model.conversions.push_back(
          {.source = source,
           .tensor = made,
           .pieces = layout::Box(into.from, at, layout::Promoted(whole ? into.shape : into.size, dims))});
    }
    return OkStatus();
  }

  // That `into` names: a new one, unless several are to make it.
  Result<uint32_t> TensorOf(const TensorDescription& source, const TensorDescription::Into& into) {
    if (into.at.empty()) return AddTensor(into.name, source.dtype, into.shape);
    const auto [known, is_new] = shared_.try_emplace(into.name, 0);
    if (is_new) known->second = AddTensor(into.name, source.dtype, into.planned());
    layout::Extents& shape = part_.model.huggingface_shapes.try_emplace(into.name, into.shape).first->second;
    const model::TensorMeta& made = part_.model.tensors[known->second];
    if (made.dtype == source.dtype && made.shape == into.planned() && shape == into.shape) return known->second;
    return Status(ErrorCode::kBadData,
                  Cat("tensor \"", source.name, "\": HuggingFace tensor \"", into.name, "\" is ",
                      model::FindDType(made.dtype)->name, " ", layout::ShapeText(shape), " as ",
                      layout::ShapeText(made.shape), " by another, and ", model::FindDType(source.dtype)->name, " ",
                      layout::ShapeText(into.shape), " as ", layout::ShapeText(into.planned()), " by this one"));
  }

  uint32_t AddTensor(const std::string& name, model::DType dtype, const layout::Extents& shape) {
    layout::TrainingModel& model = part_.model;
    const auto tensor = static_cast<uint32_t>(model.tensors.size());
    std::string key = GroupKey(name);
    const bool goes_on = tensor > 0 && key == last_group_;
    model.groups.push_back(tensor == 0 ? 0 : model.groups.back() + (goes_on ? 0 : 1));
    last_group_ = std::move(key);
    model.tensors.push_back({.name = name, .dtype = dtype, .shape = shape});
    return tensor;
  }

  PartModel part_;
  std::vector<Mention> first_mentions_;  // by source
  std::unordered_map<std::string_view, uint32_t> by_name_;
  std::unordered_map<std::string_view, uint32_t> shared_;  // HuggingFace tensors that several sources may make
  std::string last_group_;
};

}  // namespace

Result<PartModel> BuildTensorPart(const std::vector<const std::vector<TensorDescription>*>& ranks) {
  TensorPart part;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) LS_RETURN_IF_ERROR(part.AddRank(rank, *ranks[rank]));
  return part.Take();
}

}  // namespace lockstep::plan

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
      AddSource(source, tensor);
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

  void AddSource(uint32_t source, const TensorDescription& tensor) {
    part_.model.sources.push_back({.name = tensor.name, .shape = tensor.shape, .frozen = tensor.frozen});
    if (tensor.into.empty()) AddTensor(source, tensor.name, tensor.dtype, tensor.shape, layout::Whole(tensor.shape));
    for (const TensorDescription::Into& into : tensor.into) {
      const layout::Extents size = layout::Promoted(into.shape, tensor.shape.size());
      AddTensor(source, into.name, tensor.dtype, into.shape,
                layout::Box(into.from, layout::Extents(size.size(), 0), size));
    }
  }

  void AddTensor(uint32_t source, const std::string& name, model::DType dtype, const layout::Extents& shape,
                 layout::Pieces pieces) {
    layout::TrainingModel& model = part_.model;
    const auto tensor = static_cast<uint32_t>(model.tensors.size());
    std::string key = GroupKey(name);
    const bool goes_on = tensor > 0 && key == last_group_;
    model.groups.push_back(tensor == 0 ? 0 : model.groups.back() + (goes_on ? 0 : 1));
    last_group_ = std::move(key);
    model.tensors.push_back({.name = name, .dtype = dtype, .shape = shape});
    model.conversions.push_back({.source = source, .tensor = tensor, .pieces = std::move(pieces)});
  }

  PartModel part_;
  std::vector<Mention> first_mentions_;  // by source
  std::unordered_map<std::string_view, uint32_t> by_name_;
  std::string last_group_;
};

}  // namespace

Result<PartModel> BuildTensorPart(const std::vector<const std::vector<TensorDescription>*>& ranks) {
  TensorPart part;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) LS_RETURN_IF_ERROR(part.AddRank(rank, *ranks[rank]));
  return part.Take();
}

}  // namespace lockstep::plan

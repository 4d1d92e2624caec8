#include <algorithm>

#include "common/base/text.h"
#include "common/layout/strided_copy.h"
#include "raas_receiver/placement/rules/cut.h"

namespace lockstep::placement {
namespace {

// One expert's matrices, [rows, columns] each, and which part of them a rank has.
struct ExpertShape {
  size_t parts = 1;  // matrices below one another: gate and up, or down alone
  uint64_t rows = 0;
  uint64_t columns = 0;
  size_t dim = 0;  // the one that the expert-tensor group shares
  uint64_t from = 0;
  uint64_t size = 0;

  uint64_t rank_rows() const { return dim == 0 ? size : rows; }
  uint64_t rank_columns() const { return dim == 0 ? columns : size; }
};

// Every matrix of every expert has the shape and type of the first.
Status CheckAlike(const ExpertTensors& experts, const model::TensorMeta& first) {
  const auto check = [&](const model::TensorMeta& tensor) -> Status {
    if (tensor.shape != first.shape) return WrongTensor(tensor, Cat("is not of the shape of ", first.name));
    if (tensor.dtype != first.dtype) return WrongTensor(tensor, Cat("has another type than ", first.name));
    return OkStatus();
  };
  for (const TensorList& tensors : experts.routed) {
    for (const model::TensorMeta* tensor : tensors) LS_RETURN_IF_ERROR(check(*tensor));
  }
  if (experts.stacked != nullptr) return OkStatus();
  for (const model::TensorMeta* tensor : experts.shared) LS_RETURN_IF_ERROR(check(*tensor));
  return OkStatus();
}

// Shared experts next to a tensor of all routed ones: as large as one of these.
Status CheckSharedAlike(const ExpertTensors& experts, const ExpertShape& shape) {
  for (const model::TensorMeta* tensor : experts.shared) {
    if (tensor->shape != layout::Extents{shape.rows, shape.columns}) {
      return WrongTensor(*tensor, Cat("is not of the shape of an expert in ", experts.stacked->name));
    }
    if (tensor->dtype != experts.stacked->dtype)
      return WrongTensor(*tensor, "has another type than the routed experts");
  }
  return OkStatus();
}

Result<ExpertShape> ShapeOf(const ParameterRule& row, const ExpertTensors& experts, GroupPlace group) {
  const model::TensorMeta& first = experts.stacked != nullptr ? *experts.stacked : *experts.routed[0][0];
  const size_t lead = experts.stacked != nullptr ? 1 : 0;
  if (first.shape.size() != 2 + lead) return WrongTensor(first, Cat("should have ", 2 + lead, " dimensions"));
  LS_RETURN_IF_ERROR(CheckAlike(experts, first));
  ExpertShape shape{.parts = row.cut == ParameterCut::kExpertGateUp ? size_t{2} : size_t{1},
                    .rows = first.shape[lead],
                    .columns = first.shape[lead + 1],
                    .dim = row.cut == ParameterCut::kExpertGateUp ? size_t{0} : size_t{1}};
  if (experts.stacked != nullptr) {
    if (shape.rows % shape.parts != 0) return WrongTensor(first, "should have as many rows of gate as of up");
    shape.rows /= shape.parts;
    LS_RETURN_IF_ERROR(CheckSharedAlike(experts, shape));
  }
  const uint64_t size = shape.dim == 0 ? shape.rows : shape.columns;
  if (size % group.size != 0) {
    return WrongTensor(first, Cat("has experts of ", size, shape.dim == 0 ? " rows" : " columns", ", which ",
                                  group.size, " ranks cannot share evenly"));
  }
  shape.size = size / group.size;
  shape.from = group.rank * shape.size;
  return shape;
}

// One expert's tensors in slot `slot`.
void PutExpert(const TensorList& tensors, const ExpertShape& shape, uint64_t slot, EngineParameter& parameter) {
  for (size_t part = 0; part < tensors.size(); ++part) {
    layout::Extents from{0, 0};
    from[shape.dim] = shape.from;
    parameter.slices.push_back({tensors[part]->name,
                                std::move(from),
                                {shape.rank_rows(), shape.rank_columns()},
                                {slot, part * shape.rank_rows(), 0}});
  }
}

// All of a rank's experts, of a tensor that has every expert.
void PutStacked(const model::TensorMeta& stacked, ExpertRange local, const ExpertShape& shape,
                EngineParameter& parameter) {
  for (size_t part = 0; part < shape.parts; ++part) {
    layout::Extents from{local.first, part * shape.rows, 0};
    from[1 + shape.dim] += shape.from;
    parameter.slices.push_back({stacked.name,
                                std::move(from),
                                {local.count, shape.rank_rows(), shape.rank_columns()},
                                {0, part * shape.rank_rows(), 0}});
  }
}

}  // namespace

Result<ExpertRange> LocalExperts(uint64_t experts, GroupPlace group, bool uneven) {
  const uint64_t least = experts / group.size;
  const uint64_t more = experts % group.size;  // the first ranks that have one more
  if (more != 0 && !uneven) {
    return Status(ErrorCode::kBadData,
                  Cat("the model has ", experts, " experts, which ", group.size, " ranks cannot share evenly"));
  }
  return ExpertRange{group.rank * least + std::min<uint64_t>(group.rank, more), least + (group.rank < more ? 1 : 0)};
}

Status CutExperts(const ParameterRule& row, const ExpertTensors& tensors, const EngineRules& engine,
                  const EnginePlace& place, EngineParameter& parameter) {
  LS_ASSIGN_OR_RETURN(const ExpertShape shape, ShapeOf(row, tensors, place.expert_tensor));
  LS_ASSIGN_OR_RETURN(const ExpertRange local, LocalExperts(tensors.experts(), place.expert, engine.uneven_experts));
  parameter.dtype = tensors.stacked != nullptr ? tensors.stacked->dtype : tensors.routed[0][0]->dtype;
  parameter.slices.reserve((local.count + 1) * shape.parts);
  if (tensors.stacked != nullptr) {
    if (local.count > 0) PutStacked(*tensors.stacked, local, shape, parameter);
  } else {
    for (uint64_t slot = 0; slot < local.count; ++slot) {
      PutExpert(tensors.routed[local.first + slot], shape, slot, parameter);
    }
  }
  if (!tensors.shared.empty()) PutExpert(tensors.shared, shape, local.count, parameter);
  const uint64_t slots = local.count + (tensors.shared.empty() ? 0 : 1);
  parameter.shape = {slots, shape.parts * shape.rank_rows(), shape.rank_columns()};
  parameter.strides = layout::ContiguousStrides(parameter.shape);
  return OkStatus();
}

}  // namespace lockstep::placement

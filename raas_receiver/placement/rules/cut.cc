#include "raas_receiver/placement/rules/cut.h"

#include <algorithm>

#include "common/base/text.h"
#include "common/layout/strided_copy.h"

namespace lockstep::placement {
namespace {

// Rows [first, first + rows) of a tensor.
struct RowBlock {
  const model::TensorMeta* tensor = nullptr;
  uint64_t first = 0;
  uint64_t rows = 0;
};

using Blocks = std::vector<RowBlock>;

Status WantRank(const model::TensorMeta& tensor, size_t least, size_t most) {
  if (tensor.shape.size() >= least && tensor.shape.size() <= most) return OkStatus();
  return WrongTensor(tensor, least == most ? Cat("should have ", least, " dimensions")
                                           : Cat("should have ", least, " to ", most, " dimensions"));
}

// Of `size` rows (columns, heads) of `tensor`, those of one rank of `group`.
Result<uint64_t> PerRank(const model::TensorMeta& tensor, uint64_t size, std::string_view what, GroupPlace group) {
  if (size % group.size == 0) return size / group.size;
  return WrongTensor(tensor, Cat("has ", size, " ", what, ", which ", group.size, " ranks cannot share evenly"));
}

// Blocks below one another, then `padding` rows that no tensor gives.
Status PutBelow(const Blocks& blocks, uint64_t padding, EngineParameter& parameter) {
  const model::TensorMeta& first = *blocks.front().tensor;
  parameter.dtype = first.dtype;
  parameter.shape = first.shape;
  uint64_t row = 0;
  for (const RowBlock& block : blocks) {
    const model::TensorMeta& tensor = *block.tensor;
    if (!std::equal(tensor.shape.begin() + 1, tensor.shape.end(), first.shape.begin() + 1, first.shape.end())) {
      return WrongTensor(tensor, Cat("does not fit below ", first.name, " of shape ", layout::ShapeText(first.shape)));
    }
    if (tensor.dtype != first.dtype) return WrongTensor(tensor, Cat("has another type than ", first.name));
    if (block.rows == 0) continue;
    Slice slice{tensor.name, layout::Extents(tensor.shape.size()), tensor.shape, layout::Extents(tensor.shape.size())};
    slice.from[0] = block.first;
    slice.shape[0] = block.rows;
    slice.at[0] = row;
    parameter.slices.push_back(std::move(slice));
    row += block.rows;
  }
  parameter.shape[0] = row + padding;
  if (padding > 0) {
    Padding rest{layout::Extents(first.shape.size()), parameter.shape};
    rest.at[0] = row;
    rest.shape[0] = padding;
    parameter.padding.push_back(std::move(rest));
  }
  return OkStatus();
}

Status CutWhole(const TensorList& tensors, EngineParameter& parameter) {
  const model::TensorMeta& only = *tensors.front();
  if (tensors.size() == 1) {
    parameter.dtype = only.dtype;
    parameter.shape = only.shape;
    const layout::Extents origin(only.shape.size());
    parameter.slices.push_back({only.name, origin, only.shape, origin});
    return OkStatus();
  }
  Blocks blocks;
  for (const model::TensorMeta* tensor : tensors) {
    LS_RETURN_IF_ERROR(WantRank(*tensor, 1, 2));
    blocks.push_back({tensor, 0, tensor->shape[0]});
  }
  return PutBelow(blocks, 0, parameter);
}

Status CutColumn(const model::TensorMeta& tensor, GroupPlace group, EngineParameter& parameter) {
  LS_RETURN_IF_ERROR(WantRank(tensor, 1, 2));
  LS_ASSIGN_OR_RETURN(const uint64_t rows, PerRank(tensor, tensor.shape[0], "rows", group));
  return PutBelow({{&tensor, group.rank * rows, rows}}, 0, parameter);
}

Status CutRow(const model::TensorMeta& tensor, GroupPlace group, EngineParameter& parameter) {
  LS_RETURN_IF_ERROR(WantRank(tensor, 2, 2));
  LS_ASSIGN_OR_RETURN(const uint64_t columns, PerRank(tensor, tensor.shape[1], "columns", group));
  parameter.dtype = tensor.dtype;
  parameter.shape = {tensor.shape[0], columns};
  parameter.slices.push_back({tensor.name, {0, group.rank * columns}, parameter.shape, {0, 0}});
  return OkStatus();
}

// Rows of the k or v heads that a rank has: its part of them, or, with more ranks than heads, one that it has in
// common with its neighbours.
Result<RowBlock> KeyValueBlock(const model::TensorMeta& tensor, const EnginePlace& place) {
  const GroupPlace group = place.tensor;
  const uint64_t heads = place.key_value_heads;
  if (heads == 0) {
    LS_ASSIGN_OR_RETURN(const uint64_t rows, PerRank(tensor, tensor.shape[0], "rows", group));
    return RowBlock{&tensor, group.rank * rows, rows};
  }
  if (tensor.shape[0] % heads != 0) return WrongTensor(tensor, Cat("does not have ", heads, " key/value heads"));
  const uint64_t head = tensor.shape[0] / heads;
  if (group.size <= heads) {
    LS_ASSIGN_OR_RETURN(const uint64_t own, PerRank(tensor, heads, "key/value heads", group));
    return RowBlock{&tensor, group.rank * own * head, own * head};
  }
  if (group.size % heads != 0) {
    return WrongTensor(tensor,
                       Cat("has ", heads, " key/value heads, which ", group.size, " ranks cannot repeat evenly"));
  }
  return RowBlock{&tensor, group.rank / (group.size / heads) * head, head};
}

Status CutQkv(const TensorList& tensors, const EnginePlace& place, EngineParameter& parameter) {
  for (const model::TensorMeta* tensor : tensors) LS_RETURN_IF_ERROR(WantRank(*tensor, 1, 2));
  const model::TensorMeta& q = *tensors[0];
  const model::TensorMeta& k = *tensors[1];
  LS_ASSIGN_OR_RETURN(const RowBlock k_block, KeyValueBlock(k, place));
  LS_ASSIGN_OR_RETURN(const RowBlock v_block, KeyValueBlock(*tensors[2], place));
  LS_ASSIGN_OR_RETURN(const uint64_t rows, PerRank(q, q.shape[0], "rows", place.tensor));
  const uint64_t head = place.key_value_heads == 0 ? 0 : k.shape[0] / place.key_value_heads;
  if (head != 0 && rows % head != 0) {
    return WrongTensor(q, Cat("has heads of ", head, " rows, which ", place.tensor.size, " ranks cannot share evenly"));
  }
  return PutBelow({{&q, place.tensor.rank * rows, rows}, k_block, v_block}, 0, parameter);
}

// The halves of a tensor that is [gate; up], or two tensors, each whole.
Result<Blocks> GateAndUp(const TensorList& tensors) {
  for (const model::TensorMeta* tensor : tensors) LS_RETURN_IF_ERROR(WantRank(*tensor, 1, 2));
  const model::TensorMeta& gate = *tensors.front();
  const model::TensorMeta& up = *tensors.back();
  if (tensors.size() == 2) {
    if (gate.shape != up.shape) return WrongTensor(up, Cat("is not of the shape of ", gate.name));
    return Blocks{{&gate, 0, gate.shape[0]}, {&up, 0, up.shape[0]}};
  }
  if (gate.shape[0] % 2 != 0) return WrongTensor(gate, "should have gate and up, and so an even number of rows");
  const uint64_t half = gate.shape[0] / 2;
  return Blocks{{&gate, 0, half}, {&gate, half, half}};
}

Status CutGateUp(const TensorList& tensors, GroupPlace group, EngineParameter& parameter) {
  LS_ASSIGN_OR_RETURN(Blocks blocks, GateAndUp(tensors));
  for (RowBlock& block : blocks) {
    LS_ASSIGN_OR_RETURN(const uint64_t rows, PerRank(*block.tensor, block.rows, "rows of gate or up", group));
    block.first += group.rank * rows;
    block.rows = rows;
  }
  return PutBelow(blocks, 0, parameter);
}

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Status CutVocabulary(const model::TensorMeta& tensor, const EngineRules& engine, GroupPlace group,
                     EngineParameter& parameter) {
  LS_RETURN_IF_ERROR(WantRank(tensor, 2, 2));
  const uint64_t words = tensor.shape[0];
  uint64_t padded = RoundUp(words, engine.vocabulary_padding);
  if (padded % group.size != 0 && engine.pads_for_group) {
    padded = RoundUp(words, engine.vocabulary_padding * group.size);
  }
  LS_ASSIGN_OR_RETURN(const uint64_t rows, PerRank(tensor, padded, "padded rows", group));
  const uint64_t first = std::min(group.rank * rows, words);
  const uint64_t filled = std::min((group.rank + 1) * rows, words) - first;
  return PutBelow({{&tensor, first, filled}}, rows - filled, parameter);
}

Status CutByRow(const ParameterRule& row, const TensorList& tensors, const EngineRules& engine,
                const EnginePlace& place, EngineParameter& parameter) {
  switch (row.cut) {
    case ParameterCut::kWhole:
      return CutWhole(tensors, parameter);
    case ParameterCut::kColumn:
      return CutColumn(*tensors.front(), place.tensor, parameter);
    case ParameterCut::kRow:
      return CutRow(*tensors.front(), place.tensor, parameter);
    case ParameterCut::kQkv:
      return CutQkv(tensors, place, parameter);
    case ParameterCut::kGateUp:
      return CutGateUp(tensors, place.tensor, parameter);
    case ParameterCut::kVocabulary:
      return CutVocabulary(*tensors.front(), engine, place.tensor, parameter);
    case ParameterCut::kExpertGateUp:
    case ParameterCut::kExpertDown:
      break;
  }
  return {ErrorCode::kInternal, Cat("the rule of ", row.parameter, " is one of experts")};
}

}  // namespace

Status WrongTensor(const model::TensorMeta& tensor, std::string_view what) {
  return {ErrorCode::kBadData, Cat("tensor ", tensor.name, " of shape ", layout::ShapeText(tensor.shape), " ", what)};
}

Status CutTensors(const ParameterRule& row, const TensorList& tensors, const EngineRules& engine,
                  const EnginePlace& place, EngineParameter& parameter) {
  LS_RETURN_IF_ERROR(CutByRow(row, tensors, engine, place, parameter));
  parameter.strides = layout::ContiguousStrides(parameter.shape);
  return OkStatus();
}

}  // namespace lockstep::placement

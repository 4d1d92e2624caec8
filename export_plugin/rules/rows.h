// Rows at work: the shapes that one means in a model, and the pieces of its shards and conversions.
#pragma once

#include <string_view>
#include <vector>

#include "common/layout/piece.h"
#include "export_plugin/rules/family.h"
#include "export_plugin/rules/model_config.h"
#include "export_plugin/rules/topology.h"

namespace lockstep::rules {

// Of the whole parameter; vocabularies without padding.
layout::Extents FullShape(const FamilyRow& row, const ModelConfig& config);

// Number of HuggingFace tensors a row makes.
size_t TargetCount(const FamilyRow& row);

// The HuggingFace tensors of a row and how its source becomes them.
struct RowTarget {
  std::string_view name;  // within the layer
  layout::Extents shape;
  layout::Pieces pieces;
};
std::vector<RowTarget> TargetsOf(const FamilyRow& row, const ModelConfig& config);

// How a parameter of `local_shape` lies in its source of `full` shape. kBadData says which shape it should have.
Result<layout::Pieces> PiecesOf(TensorSplit split, const layout::Extents& full, const layout::Extents& local_shape,
                                GroupPlace place);

// The local shape Megatron gives a parameter; `replicated` decides kColumnOrReplicated. For kVocabulary `full` is the
// padded shape. kBadData when it does not divide.
Result<layout::Extents> LocalShape(TensorSplit split, layout::Extents full, bool replicated, GroupPlace place);

}  // namespace lockstep::rules

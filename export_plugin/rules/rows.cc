#include "export_plugin/rules/rows.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::rules {
namespace {

// `rows` rows from `from` of A as rows from `to` of B, over the whole of `shape`'s other dimensions.
layout::Piece RowsPiece(const layout::Extents& shape, uint64_t from, uint64_t to, uint64_t rows) {
  layout::Piece piece{.source = layout::Extents(shape.size()), .target = layout::Extents(shape.size()), .size = shape};
  piece.source[0] = from;
  piece.target[0] = to;
  piece.size[0] = rows;
  return piece;
}

layout::Extents WithRows(layout::Extents shape, uint64_t rows) {
  shape[0] = rows;
  return shape;
}

// A source is, group after group, the group's queries, its key and its value (`head_dim` rows each).
std::vector<RowTarget> QkvTargets(std::string_view names, const layout::Extents& full, const ModelConfig& config) {
  const uint64_t d = config.head_dim;
  const uint64_t queries = config.heads / config.groups * d;
  RowTarget q{NextPart(names), WithRows(full, config.groups * queries), {}};
  RowTarget k{NextPart(names), WithRows(full, config.groups * d), {}};
  RowTarget v{NextPart(names), WithRows(full, config.groups * d), {}};
  for (uint64_t group = 0; group < config.groups; ++group) {
    const uint64_t base = group * (queries + 2 * d);
    q.pieces.push_back(RowsPiece(full, base, group * queries, queries));
    k.pieces.push_back(RowsPiece(full, base + queries, group * d, d));
    v.pieces.push_back(RowsPiece(full, base + queries + d, group * d, d));
  }
  return {std::move(q), std::move(k), std::move(v)};
}

Status WrongShape(const layout::Extents& local, const layout::Extents& expected, const layout::Extents& full,
                  GroupPlace place) {
  return Status(ErrorCode::kBadData,
                Cat("its shape is ", layout::ShapeText(local), ", but shard ", place.at, " of ", place.of,
                    " of the whole ", layout::ShapeText(full), " is ", layout::ShapeText(expected)));
}

// Shards are equal parts of a vocabulary padded to any size; their real rows come first.
Result<layout::Pieces> VocabularyPieces(const layout::Extents& full, const layout::Extents& local_shape,
                                        GroupPlace place) {
  const uint64_t vocabulary = full[0];
  const uint64_t needed = (vocabulary + place.of - 1) / place.of;
  if (local_shape.size() != full.size() || local_shape[1] != full[1] || local_shape[0] < needed ||
      local_shape[0] > kMaxExtent) {
    return Status(ErrorCode::kBadData,
                  Cat("its shape is ", layout::ShapeText(local_shape), ", but shard ", place.at, " of ", place.of,
                      " of a vocabulary of ", vocabulary, " has at least ", needed, " rows of ", full[1]));
  }
  const uint64_t begin = place.at * local_shape[0];
  if (begin >= vocabulary) return layout::Pieces{};
  return layout::Pieces{RowsPiece(local_shape, 0, begin, std::min(local_shape[0], vocabulary - begin))};
}

layout::Pieces GluPieces(const layout::Extents& full, GroupPlace place) {
  const uint64_t half = full[0] / 2;
  const uint64_t part = half / place.of;
  return {RowsPiece(full, 0, place.at * part, part), RowsPiece(full, part, half + place.at * part, part)};
}

}  // namespace

layout::Extents FullShape(const FamilyRow& row, const ModelConfig& config) {
  layout::Extents shape{row.rows(config)};
  if (row.columns != nullptr) shape.push_back(row.columns(config));
  return shape;
}

size_t TargetCount(const FamilyRow& row) {
  return 1 + static_cast<size_t>(std::count(row.hf.begin(), row.hf.end(), '|'));
}

std::vector<RowTarget> TargetsOf(const FamilyRow& row, const ModelConfig& config) {
  const layout::Extents full = FullShape(row, config);
  std::string_view names = row.hf;
  if (row.split == TensorSplit::kQkv) return QkvTargets(names, full, config);
  // Gate and up of a GLU; every other row makes one tensor.
  const uint64_t count = TargetCount(row);
  const uint64_t rows = full[0] / count;
  std::vector<RowTarget> targets;
  for (uint64_t i = 0; i < count; ++i) {
    targets.push_back({NextPart(names), WithRows(full, rows), {RowsPiece(full, i * rows, 0, rows)}});
  }
  return targets;
}

Result<layout::Pieces> PiecesOf(TensorSplit split, const layout::Extents& full, const layout::Extents& local_shape,
                                GroupPlace place) {
  if (split == TensorSplit::kVocabulary) return VocabularyPieces(full, local_shape, place);
  if (split == TensorSplit::kColumnOrReplicated) {
    split = local_shape == full ? TensorSplit::kReplicated : TensorSplit::kColumn;
  }
  LS_ASSIGN_OR_RETURN(const layout::Extents expected, LocalShape(split, full, /*replicated=*/false, place));
  if (local_shape != expected) return WrongShape(local_shape, expected, full, place);
  if (split == TensorSplit::kReplicated) return layout::Whole(full);
  if (split == TensorSplit::kGlu) return GluPieces(full, place);
  return layout::ShardOf(full, split == TensorSplit::kRow ? 1 : 0, place.at, place.of);
}

Result<layout::Extents> LocalShape(TensorSplit split, layout::Extents full, bool replicated, GroupPlace place) {
  if (split == TensorSplit::kReplicated || (split == TensorSplit::kColumnOrReplicated && replicated)) return full;
  uint64_t& extent = full[split == TensorSplit::kRow ? 1 : 0];
  const uint64_t unit = split == TensorSplit::kGlu ? uint64_t{2} * place.of : place.of;
  if (extent % unit != 0) {
    return Status(ErrorCode::kBadData, Cat(split == TensorSplit::kRow ? "columns" : "rows", " of the whole ",
                                           layout::ShapeText(full), " do not divide into ", place.of,
                                           split == TensorSplit::kGlu ? " parts of gate and up" : " parts"));
  }
  extent /= place.of;
  return full;
}

}  // namespace lockstep::rules

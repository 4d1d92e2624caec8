#include "export_plugin/rules/rows.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep {
namespace {

uint64_t ExtentOf(Dim dim, const ModelConfig& config) {
  switch (dim) {
    case Dim::kNone:
      return 0;
    case Dim::kOne:
      return 1;
    case Dim::kHidden:
      return config.hidden;
    case Dim::kTwoHidden:
      return 2 * config.hidden;
    case Dim::kVocabularyRows:
      return config.vocabulary;
    case Dim::kQkvRows:
      return (config.heads + 2 * config.groups) * config.head_dim;
    case Dim::kHeads:
      return config.heads * config.head_dim;
    case Dim::kHeadDim:
      return config.head_dim;
    case Dim::kTwoFfn:
      return 2 * config.ffn;
    case Dim::kFfn:
      return config.ffn;
    case Dim::kTwoExpertFfn:
      return 2 * config.expert_ffn;
    case Dim::kExpertFfn:
      return config.expert_ffn;
    case Dim::kTwoSharedFfn:
      return 2 * config.shared_ffn;
    case Dim::kSharedFfn:
      return config.shared_ffn;
    case Dim::kExperts:
      return config.experts;
    case Dim::kQueryRank:
      return config.q_rank;
    case Dim::kKvRank:
      return config.kv_rank;
    case Dim::kKvDown:
      return config.kv_rank + config.qk_rope_dim;
    case Dim::kMlaQuery:
      return config.heads * (config.qk_nope_dim + config.qk_rope_dim);
    case Dim::kMlaKv:
      return config.heads * (config.qk_nope_dim + config.v_dim);
    case Dim::kMlaValue:
      return config.heads * config.v_dim;
  }
  return 0;
}

// `rows` rows from `from` of A as rows from `to` of B, over the whole of `shape`'s other dimensions.
Piece RowsPiece(const Extents& shape, uint64_t from, uint64_t to, uint64_t rows) {
  Piece piece{.source = Extents(shape.size()), .target = Extents(shape.size()), .size = shape};
  piece.source[0] = from;
  piece.target[0] = to;
  piece.size[0] = rows;
  return piece;
}

Extents WithRows(Extents shape, uint64_t rows) {
  shape[0] = rows;
  return shape;
}

// A source is, group after group, the group's queries, its key and its value (`head_dim` rows each).
std::vector<Target> QkvTargets(std::string_view names, const Extents& full, const ModelConfig& config) {
  const uint64_t d = config.head_dim;
  const uint64_t queries = config.heads / config.groups * d;
  Target q{NextPart(names), WithRows(full, config.groups * queries), {}};
  Target k{NextPart(names), WithRows(full, config.groups * d), {}};
  Target v{NextPart(names), WithRows(full, config.groups * d), {}};
  for (uint64_t group = 0; group < config.groups; ++group) {
    const uint64_t base = group * (queries + 2 * d);
    q.pieces.push_back(RowsPiece(full, base, group * queries, queries));
    k.pieces.push_back(RowsPiece(full, base + queries, group * d, d));
    v.pieces.push_back(RowsPiece(full, base + queries + d, group * d, d));
  }
  return {std::move(q), std::move(k), std::move(v)};
}

Status WrongShape(const Extents& local, const Extents& expected, const Extents& full, ShardPlace place) {
  return Status(ErrorCode::kBadData, Cat("its shape is ", ShapeText(local), ", but shard ", place.index, " of ",
                                         place.count, " of the whole ", ShapeText(full), " is ", ShapeText(expected)));
}

// Shards are equal parts of a vocabulary padded to any size; their real rows come first.
Result<Pieces> VocabularyPieces(const Extents& full, const Extents& local_shape, ShardPlace place) {
  const uint64_t vocabulary = full[0];
  const uint64_t needed = (vocabulary + place.count - 1) / place.count;
  if (local_shape.size() != full.size() || local_shape[1] != full[1] || local_shape[0] < needed ||
      local_shape[0] > kMaxExtent) {
    return Status(ErrorCode::kBadData,
                  Cat("its shape is ", ShapeText(local_shape), ", but shard ", place.index, " of ", place.count,
                      " of a vocabulary of ", vocabulary, " has at least ", needed, " rows of ", full[1]));
  }
  const uint64_t begin = place.index * local_shape[0];
  if (begin >= vocabulary) return Pieces{};
  return Pieces{RowsPiece(local_shape, 0, begin, std::min(local_shape[0], vocabulary - begin))};
}

Pieces GluPieces(const Extents& full, ShardPlace place) {
  const uint64_t half = full[0] / 2;
  const uint64_t part = half / place.count;
  return {RowsPiece(full, 0, place.index * part, part), RowsPiece(full, part, half + place.index * part, part)};
}

}  // namespace

bool Applies(When when, const ModelConfig& config) {
  switch (when) {
    case When::kAlways:
      return true;
    case When::kUntied:
      return !config.tied_embeddings;
    case When::kQkvBias:
      return config.qkv_bias;
    case When::kQkNorm:
      return config.qk_norm;
    case When::kRouterBias:
      return config.router_bias;
    case When::kSharedExperts:
      return config.shared_ffn > 0;
    case When::kQueryRank:
      return config.q_rank > 0;
    case When::kNoQueryRank:
      return config.q_rank == 0;
  }
  return false;
}

std::string_view NameOf(When when) {
  switch (when) {
    case When::kAlways:
      return "nothing";
    case When::kUntied:
      return "untied embeddings";
    case When::kQkvBias:
      return "a bias on q, k and v";
    case When::kQkNorm:
      return "norms of q and k";
    case When::kRouterBias:
      return "a router bias";
    case When::kSharedExperts:
      return "shared experts";
    case When::kQueryRank:
      return "a q_lora_rank";
    case When::kNoQueryRank:
      return "no q_lora_rank";
  }
  return "";
}

Extents FullShape(const Row& row, const ModelConfig& config) {
  Extents shape{ExtentOf(row.rows, config)};
  if (row.columns != Dim::kNone) shape.push_back(ExtentOf(row.columns, config));
  return shape;
}

size_t TargetCount(const Row& row) {
  return 1 + static_cast<size_t>(std::count(row.hf.begin(), row.hf.end(), '|'));
}

std::vector<Target> TargetsOf(const Row& row, const ModelConfig& config) {
  const Extents full = FullShape(row, config);
  std::string_view names = row.hf;
  if (row.split == Split::kQkv) return QkvTargets(names, full, config);
  // Gate and up of a GLU; every other row makes one tensor.
  const uint64_t count = TargetCount(row);
  const uint64_t rows = full[0] / count;
  std::vector<Target> targets;
  for (uint64_t i = 0; i < count; ++i) {
    targets.push_back({NextPart(names), WithRows(full, rows), {RowsPiece(full, i * rows, 0, rows)}});
  }
  return targets;
}

Result<Pieces> PiecesOf(Split split, const Extents& full, const Extents& local_shape, ShardPlace place) {
  if (split == Split::kVocabulary) return VocabularyPieces(full, local_shape, place);
  if (split == Split::kColumnOrReplicated) {
    split = local_shape == full ? Split::kReplicated : Split::kColumn;
  }
  LS_ASSIGN_OR_RETURN(const Extents expected, LocalShape(split, full, /*replicated=*/false, place));
  if (local_shape != expected) return WrongShape(local_shape, expected, full, place);
  if (split == Split::kReplicated) return Whole(full);
  if (split == Split::kGlu) return GluPieces(full, place);
  return ShardOf(full, split == Split::kRow ? 1 : 0, place.index, place.count);
}

Result<Extents> LocalShape(Split split, Extents full, bool replicated, ShardPlace place) {
  if (split == Split::kReplicated || (split == Split::kColumnOrReplicated && replicated)) return full;
  uint64_t& extent = full[split == Split::kRow ? 1 : 0];
  const uint64_t unit = split == Split::kGlu ? 2 * place.count : place.count;
  if (extent % unit != 0) {
    return Status(ErrorCode::kBadData,
                  Cat(split == Split::kRow ? "columns" : "rows", " of the whole ", ShapeText(full),
                      " do not divide into ", place.count, split == Split::kGlu ? " parts of gate and up" : " parts"));
  }
  extent /= place.count;
  return full;
}

}  // namespace lockstep

#include "common/layout/piece.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "common/base/text.h"
#include "common/layout/tiling.h"

namespace lockstep::layout {
namespace {

// Whether the target box of `a` and the source box of `b` share elements.
bool Meet(const Piece& a, const Piece& b) {
  for (size_t k = 0; k < a.size.size(); ++k) {
    if (std::max(a.target[k], b.source[k]) >= std::min(a.target[k] + a.size[k], b.source[k] + b.size[k])) return false;
  }
  return true;
}

Piece Through(const Piece& a, const Piece& b) {
  const size_t rank = a.size.size();
  Piece piece{Extents(rank), Extents(rank), Extents(rank)};
  for (size_t k = 0; k < rank; ++k) {
    const uint64_t begin = std::max(a.target[k], b.source[k]);
    piece.source[k] = a.source[k] + (begin - a.target[k]);
    piece.target[k] = b.target[k] + (begin - b.source[k]);
    piece.size[k] = std::min(a.target[k] + a.size[k], b.source[k] + b.size[k]) - begin;
  }
  return piece;
}

bool Within(const Extents& start, const Extents& size, const Extents& shape) {
  for (size_t k = 0; k < shape.size(); ++k) {
    if (start[k] > shape[k] || size[k] > shape[k] - start[k]) return false;
  }
  return true;
}

Status CheckSide(size_t piece, const char* side, const Extents& start, const Extents& size, const Extents& shape) {
  if (start.size() != shape.size() || size.size() != shape.size()) {
    return {ErrorCode::kBadData,
            Cat("piece ", piece, ": its ", side, " box has ", start.size(), " dimensions (its size ", size.size(),
                ") but the tensor of shape ", ShapeText(shape), " has ", shape.size())};
  }
  if (Within(start, size, shape)) return OkStatus();
  return {ErrorCode::kBadData, Cat("piece ", piece, ": its ", side, " box ", BoxText(start, size),
                                   " leaves the tensor of shape ", ShapeText(shape))};
}

}  // namespace

uint64_t ElementCount(const Extents& shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

uint64_t ElementCount(const Pieces& pieces) {
  uint64_t elements = 0;
  for (const Piece& piece : pieces) elements += ElementCount(piece.size);
  return elements;
}

Pieces Whole(const Extents& shape) {
  return Box(Extents(shape.size()), Extents(shape.size()), shape);
}

Pieces ShardOf(const Extents& shape, size_t dim, uint64_t index, uint64_t count) {
  Pieces shard = Whole(shape);
  shard[0].size[dim] /= count;
  shard[0].target[dim] = index * shard[0].size[dim];
  return shard;
}

Pieces Box(Extents source, Extents target, Extents size) {
  Pieces pieces(1);
  pieces[0] = {std::move(source), std::move(target), std::move(size)};
  return pieces;
}

Pieces Compose(const Pieces& first, const Pieces& second) {
  Pieces composed;
  for (const Piece& a : first) {
    for (const Piece& b : second) {
      if (Meet(a, b)) composed.push_back(Through(a, b));
    }
  }
  return composed;
}

Pieces Inverse(const Pieces& pieces) {
  Pieces inverse = pieces;
  for (Piece& piece : inverse) std::swap(piece.source, piece.target);
  return inverse;
}

Status CheckBounds(const Pieces& pieces, const Extents& source_shape, const Extents& target_shape) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    LS_RETURN_IF_ERROR(CheckSide(i, "source", pieces[i].source, pieces[i].size, source_shape));
    LS_RETURN_IF_ERROR(CheckSide(i, "target", pieces[i].target, pieces[i].size, target_shape));
  }
  return OkStatus();
}

Status CheckTiling(const Pieces& pieces, const Extents& shape) {
  std::vector<BoxView> boxes;
  boxes.reserve(pieces.size());
  for (const Piece& piece : pieces) boxes.push_back(TargetView(piece, shape.size()));
  if (const auto overlap = FindOverlap(boxes, shape.size())) {
    const Piece shared = Shared(boxes[overlap->first], boxes[overlap->second], shape.size());
    return {ErrorCode::kBadData, Cat("pieces ", overlap->first, " and ", overlap->second, " overlap in ",
                                     BoxText(shared.target, shared.size))};
  }
  if (const auto hole = FindHole(boxes, shape)) {
    return {ErrorCode::kBadData, Cat("nothing covers ", hole->elements, " of ", ElementCount(shape),
                                     " elements, the first at ", ShapeText(hole->first))};
  }
  return OkStatus();
}

std::string ShapeText(const Extents& shape) {
  std::string text = "[";
  for (size_t k = 0; k < shape.size(); ++k) text += (k == 0 ? "" : ", ") + std::to_string(shape[k]);
  return text + "]";
}

std::string BoxText(const Extents& start, const Extents& size) {
  std::string text = "[";
  for (size_t k = 0; k < start.size(); ++k) {
    text += (k == 0 ? "" : ", ") + std::to_string(start[k]) + ":" + std::to_string(start[k] + size[k]);
  }
  return text + "]";
}

}  // namespace lockstep::layout

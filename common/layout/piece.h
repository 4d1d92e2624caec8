// Pieces: the one algebra for how the elements of tensors in one layout lie in the tensors of another.
//
// Everything between a training layout and the HuggingFace layout (tensor-parallel shards, fused QKV and gate/up,
// padded vocabularies, FSDP shards), and between that and an engine's, moves axis-aligned boxes of elements and never
// permutes axes. So one relation is enough: a list of boxes, each saying "the elements of this box of A are those of
// that box of B". Relations compose by intersecting boxes in the tensor between, and invert by swapping their ends:
//
//   local shard --ShardOf--> whole training tensor --conversion (split, trim)--> HuggingFace tensor
//
// Units are elements; a tensor of rank 0 has one element and boxes of no dimension. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace lockstep::layout {

using Extents = std::vector<uint64_t>;  // one number per dimension

// The elements of the box of `size` at `source` in tensor A are, in the same order, those of the box at `target` in B.
// All three have the rank of both tensors. A box with a 0 in `size` is empty.
struct Piece {
  Extents source;
  Extents target;
  Extents size;

  bool operator==(const Piece&) const = default;
};

// A relation between two tensors. Boxes of one relation do not overlap in A, nor in B.
using Pieces = std::vector<Piece>;

uint64_t ElementCount(const Extents& shape);  // REQUIRES the product to fit (model/layout.h limits it)
uint64_t ElementCount(const Pieces& pieces);

// The whole tensor, unmoved.
Pieces Whole(const Extents& shape);
// From shard `index` of `count` equal shards along `dim` to the whole tensor of `shape`. REQUIRES shape[dim] divisible.
Pieces ShardOf(const Extents& shape, size_t dim, uint64_t index, uint64_t count);
// The box of `size` at `source` in A as the box at `target` in B: one piece.
Pieces Box(Extents source, Extents target, Extents size);

// A→B and B→C give A→C: what of A reaches C. Elements of B that only one side knows are dropped (a trimmed vocabulary).
Pieces Compose(const Pieces& first, const Pieces& second);
// B→A.
Pieces Inverse(const Pieces& pieces);
// Returns the same relation in canonical boxes, sorted by target: each as long as can be in the last dimension, then in
// the one before it, and so on. Equal relations become equal lists, however they were cut.
Pieces Normalize(Pieces pieces);

// Whether every piece lies within `source_shape` on its source side and `target_shape` on its target side. kBadData
// says which piece does not.
Status CheckBounds(const Pieces& pieces, const Extents& source_shape, const Extents& target_shape);
// Whether the target boxes cover a tensor of `shape` exactly once. REQUIRES CheckBounds. kBadData gives the first
// overlap (two boxes) or, when there is none, how many elements nothing covers and where the first is.
Status CheckTiling(const Pieces& pieces, const Extents& shape);

// For messages: "[8, 16]" and "[0:4, 8:16]".
std::string ShapeText(const Extents& shape);
std::string BoxText(const Extents& start, const Extents& size);

}  // namespace lockstep::layout

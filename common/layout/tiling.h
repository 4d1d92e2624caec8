// Whether boxes tile a tensor: the search for an overlap and for a hole, over boxes that lie in the caller's memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/layout/piece.h"

namespace lockstep::layout {

// A box as two lists of as many numbers as the tensor has dimensions.
struct BoxView {
  const uint64_t* start = nullptr;
  const uint64_t* size = nullptr;
};

// Two boxes of a list, by position, that share elements; first < second.
struct Overlap {
  size_t first = 0;
  size_t second = 0;
};

// Elements that no box covers.
struct Hole {
  uint64_t elements = 0;
  Extents first;  // in row-major order
};

// The first of a `rank`-dimensional tensor's target boxes in `pieces`; where a piece has more dimensions than the
// tensor, the tensor's are the last ones.
BoxView TargetView(const Piece& piece, size_t rank);
// The elements that two overlapping boxes share.
Piece Shared(const BoxView& a, const BoxView& b, size_t rank);

// Near-linear where straight cuts separate the boxes (grids, and any shards of shards); boxes that no cut divides are
// compared in pairs. REQUIRES start + size to fit.
std::optional<Overlap> FindOverlap(std::span<const BoxView> boxes, size_t rank);
// REQUIRES boxes within `shape` that do not overlap.
std::optional<Hole> FindHole(std::span<const BoxView> boxes, const Extents& shape);

// kBadData when two pieces share elements on either side. REQUIRES CheckBounds.
Status CheckDisjoint(const Pieces& pieces);

}  // namespace lockstep::layout

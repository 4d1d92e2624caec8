// StridedCopy: a piece in bytes, ready to run: `rows` rows of `row_bytes` each, with a pitch on either side.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/layout/piece.h"

namespace lockstep::layout {

// Row r goes from source_offset + r * source_pitch to target_offset + r * target_pitch. Pitches are 0 when rows is 1.
// `row_bytes` is what a row has in the target; where elements are converted on the way, a row of the source has
// row_bytes * source element / target element bytes.
struct StridedCopy {
  uint64_t source_offset = 0;
  uint64_t target_offset = 0;
  uint64_t rows = 1;
  uint64_t row_bytes = 0;
  uint64_t source_pitch = 0;
  uint64_t target_pitch = 0;

  uint64_t bytes() const { return rows * row_bytes; }
  bool operator==(const StridedCopy&) const = default;
};

Extents ContiguousStrides(const Extents& shape);  // in elements

// How a tensor lies in memory. Strides count elements, as PyTorch gives them.
struct TensorView {
  Extents shape;
  Extents strides;
  uint64_t element_bytes = 0;
  uint64_t offset = 0;  // of the first element, in bytes from whatever the copies are relative to

  static TensorView Contiguous(Extents shape, uint64_t element_bytes, uint64_t offset);
};

// Appends the copies that move `pieces` from `source` to `target`: as few as merging contiguous dimensions gives, then
// one for each index of the outer dimensions. REQUIRES CheckBounds(pieces, source.shape, target.shape).
void AppendCopies(const Pieces& pieces, const TensorView& source, const TensorView& target,
                  std::vector<StridedCopy>& copies);

// How many copies AppendCopies appends for `piece`: what to ask before, where strides come from outside.
uint64_t CopyCount(const Piece& piece, const TensorView& source, const TensorView& target);

// Bytes of an element on either side of a copy.
struct ElementBytes {
  uint64_t source = 1;
  uint64_t target = 1;
};

// Merges neighbours of the list that continue one another: row by row end to end, or as further rows of the same pitch.
void Coalesce(std::vector<StridedCopy>& copies, ElementBytes element);

// Appends `copy` cut into parts of at most `max_bytes` of target: between rows, or, where one row is more, between its
// elements. REQUIRES max_bytes >= element.target.
void AppendSplit(const StridedCopy& copy, uint64_t max_bytes, ElementBytes element, std::vector<StridedCopy>& parts);

// Appends the parts of `copy` that write into [begin, end) of the target. REQUIRES begin < end, neither within an
// element of it, and rows that do not overlap in the target.
void AppendClipped(const StridedCopy& copy, uint64_t begin, uint64_t end, ElementBytes element,
                   std::vector<StridedCopy>& parts);

// The bytes of the target that `copy` writes.
StridedRange TargetRange(const StridedCopy& copy);

}  // namespace lockstep::layout

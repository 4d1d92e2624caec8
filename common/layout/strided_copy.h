// StridedCopy: a piece in bytes, ready to run: `rows` rows of `row_bytes` each, with a pitch on either side.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/layout/piece.h"

namespace lockstep {

// Row r goes from source_offset + r * source_pitch to target_offset + r * target_pitch. Pitches are 0 when rows is 1.
// `row_bytes` is what a row has in the target; where elements are converted on the way (a wider source), a row of the
// source has row_bytes * source element / target element bytes.
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

// Merges copies that continue one another (end to end, or as further rows of the same pitch), in the given order.
void Coalesce(std::vector<StridedCopy>& copies);

// Appends `copy` cut into parts of at most `max_bytes` of target, between rows, or inside a row where one row is more.
// `source_scale` is source element bytes / target element bytes (1 without conversion); cuts inside a row are multiples
// of `unit_bytes` of target. REQUIRES max_bytes >= unit_bytes > 0.
void AppendSplit(const StridedCopy& copy, uint64_t max_bytes, uint64_t unit_bytes, uint64_t source_scale,
                 std::vector<StridedCopy>& parts);

// The bytes of the target that `copy` writes.
StridedRange TargetRange(const StridedCopy& copy);

}  // namespace lockstep

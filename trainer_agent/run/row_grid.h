// RowGrid: which bytes of one region are reported, when they are reported as columns of rows.
//
// The region is seen as rows of `pitch` bytes (the last may be short). Then a strided range of the same pitch is one
// rectangle of rows and columns, or two where it wraps around a row's end, and a plain range is at most three; however
// many rows they have. Invariant: bands of consecutive rows tile the rows, each with the columns that are reported in
// every row of it and in no row else; neighbouring bands differ. So ranks that report their columns cut at equal rows,
// or in ascending pieces, leave one band or two.
#pragma once

#include <array>
#include <map>

#include "common/base/ids.h"
#include "trainer_agent/run/interval_set.h"

namespace lockstep::run {

// Not thread-safe.
class RowGrid {
 public:
  // REQUIRES region.bytes > 0 and pitch > 0.
  RowGrid(ByteRange region, uint64_t pitch);

  const ByteRange& region() const { return region_; }
  uint64_t pitch() const { return pitch_; }

  // REQUIRES range to lie in the region, and to have one row or this pitch.
  bool Overlaps(const StridedRange& range) const;
  void Insert(const StridedRange& range);  // REQUIRES !Overlaps(range)

  bool complete() const { return reported_bytes_ == region_.bytes; }
  uint64_t FirstMissing() const;             // offset of the first byte that is not reported. REQUIRES !complete()
  size_t pieces() const { return pieces_; }  // bands and their columns: what is kept

 private:
  struct Rectangle {  // empty when it has no row
    uint64_t first_row = 0;
    uint64_t end_row = 0;
    uint64_t first_column = 0;
    uint64_t end_column = 0;
  };
  using Bands = std::map<uint64_t, IntervalSet>;  // first row -> columns; a band ends where the next one starts

  std::array<Rectangle, 3> Rectangles(const StridedRange& range) const;
  bool Overlaps(const Rectangle& rectangle) const;
  void Insert(const Rectangle& rectangle);
  void SplitAt(uint64_t row);
  void MergeEqual(uint64_t first_row, uint64_t last_row);

  ByteRange region_;
  uint64_t pitch_;
  uint64_t rows_;
  Bands bands_;
  uint64_t reported_bytes_ = 0;
  size_t pieces_ = 1;
};

}  // namespace lockstep::run

// PlacementPlan: how the bytes of a HuggingFace layout lie in the memories of an engine's ranks. Compiled once, proved,
// then run for whole versions (copies and zeros) and looked up for changes (row ranges). Pure data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/layout/strided_copy.h"
#include "common/model/layout.h"
#include "raas_receiver/placement/description/description.h"

namespace lockstep::placement {

// One memory of one rank. Target offsets count from its begin.
struct TargetBuffer {
  uint32_t rank = 0;    // position in Compile's list
  uint32_t memory = 0;  // of the rank's description
  uint64_t bytes = 0;

  bool operator==(const TargetBuffer&) const = default;
};

// Where columns of a row range go: byte c of row r, for c in [column, column + bytes), is byte
// target_offset + r * target_pitch + (c - column) of the buffer. The pitch of one row is 0.
struct ColumnCopy {
  uint64_t column = 0;
  uint64_t bytes = 0;
  uint32_t buffer = 0;
  uint64_t target_offset = 0;
  uint64_t target_pitch = 0;
};

// Neighbouring rows of the data section that are cut and copied alike.
struct RowRange {
  uint64_t offset = 0;  // into the data section
  uint64_t rows = 1;
  uint64_t pitch = 0;  // bytes of a row
  uint32_t first_copy = 0;
  uint32_t copies = 0;  // by rising column; together they cover the row, and may cover the same columns

  uint64_t end() const { return offset + rows * pitch; }
};

class PlacementPlan {
 public:
  // `ranks`, completed (rules.h), are all ranks of one engine, `unused` the tensors it does not take. kBadData names
  // the rank, parameter or tensor of the first rule broken: a slice of a tensor that is not in the layout, of another
  // dtype, or outside it; an element of a parameter given twice or by nothing; an element of a wanted tensor that no
  // rank takes; parameters that overlap in memory (unless they lie at one place and are made of the same: a tied head);
  // a parameter that lies so scattered that its copies are more than 2^20, or those of all more than 2^24.
  static Result<std::shared_ptr<const PlacementPlan>> Compile(const model::ModelLayout& layout,
                                                              const std::vector<RankDescription>& ranks,
                                                              const std::vector<std::string>& unused);

  const std::vector<TargetBuffer>& buffers() const { return buffers_; }
  // The copies that fill `buffer` from the data section.
  std::span<const layout::StridedCopy> copies(uint32_t buffer) const { return copies_[buffer]; }
  // What must be zero besides: padding, and the lower halves of BF16 in F32. Changes never touch it.
  std::span<const StridedRange> zeros(uint32_t buffer) const { return zeros_[buffer]; }

  // By rising offset, not overlapping. Bytes between them are of tensors that the engine does not take.
  std::span<const RowRange> row_ranges() const { return row_ranges_; }
  std::span<const ColumnCopy> column_copies(const RowRange& range) const {
    return std::span(column_copies_).subspan(range.first_copy, range.copies);
  }
  // The first range that ends after `offset`; row_ranges().end() when there is none.
  std::span<const RowRange>::iterator RowRangeAt(uint64_t offset) const;

 private:
  PlacementPlan() = default;

  std::vector<TargetBuffer> buffers_;
  std::vector<std::vector<layout::StridedCopy>> copies_;  // by buffer
  std::vector<std::vector<StridedRange>> zeros_;          // by buffer
  std::vector<RowRange> row_ranges_;
  std::vector<ColumnCopy> column_copies_;
};

}  // namespace lockstep::placement

// ScatterIndex: a plan's row ranges, cut at the columns where the target buffers change, so that a run of bytes has one
// answer to "where to?". Only the buffers that somebody wants; made once for many look-ups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/layout/strided_copy.h"
#include "raas_receiver/placement/plan/placement_plan.h"

namespace lockstep::placement {

// Byte b of the data section, in row r of its row range, is byte b + shift + r * row_shift (mod 2^64) of `buffer`.
struct TargetOffset {
  uint32_t buffer = 0;
  uint64_t shift = 0;
  uint64_t row_shift = 0;
};

// Columns [begin, end) of each row of a row range.
struct ColumnRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t first_target = 0;
  uint32_t targets = 0;  // none: no wanted buffer takes them
};

// Immutable, thread-safe. `plan` outlives it.
class ScatterIndex {
 public:
  ScatterIndex(const PlacementPlan& plan, const std::vector<bool>& wanted);

  std::span<const RowRange> row_ranges() const { return plan_.row_ranges(); }
  // The first row range that ends after `offset`.
  std::span<const RowRange>::iterator RowRangeAt(uint64_t offset) const { return plan_.RowRangeAt(offset); }
  // They follow one another from 0 to the pitch of `rows`.
  std::span<const ColumnRange> column_ranges(const RowRange& rows) const;
  std::span<const TargetOffset> targets(const ColumnRange& columns) const {
    return std::span(targets_).subspan(columns.first_target, columns.targets);
  }

 private:
  void Add(const RowRange& rows, const std::vector<bool>& wanted);

  const PlacementPlan& plan_;
  std::vector<size_t> first_columns_;  // one per row range, and one for the end
  std::vector<ColumnRange> column_ranges_;
  std::vector<TargetOffset> targets_;
};

// Neighbouring bytes that lie in one row and go to the same targets.
struct ByteRun {
  uint64_t end = 0;
  uint64_t row = 0;
  std::span<const TargetOffset> targets;
};

// Looks up rising offsets. Cost follows the look-ups: rows and row ranges between them are passed over.
class ScatterCursor {
 public:
  explicit ScatterCursor(const ScatterIndex& index) : index_(index), rows_end_(index.row_ranges().end()) {}

  // The run that begins at `offset`. REQUIRES offset at or after the one before.
  ByteRun At(uint64_t offset);

 private:
  void EnterRows(uint64_t offset);
  void EnterRow(uint64_t offset);

  const ScatterIndex& index_;
  const std::span<const RowRange>::iterator rows_end_;
  std::span<const RowRange>::iterator rows_{};
  uint64_t passed_ = 0;  // bytes before it have been passed, or are of rows_
  uint64_t row_ = 0;
  uint64_t row_begin_ = 0;
  uint64_t row_end_ = 0;
  std::span<const ColumnRange> columns_;  // of rows_
  size_t column_ = 0;                     // of columns_
};

// Rows [row, row + rows) of a row range, of each the columns [from, to).
struct RowRangePart {
  uint64_t row = 0;
  uint64_t rows = 0;
  uint64_t from = 0;
  uint64_t to = 0;
};

// `bytes` as at most three parts of `rows`: the rest of a row, whole rows, the begin of a row. REQUIRES that they share
// bytes.
std::vector<RowRangePart> PartsOf(const RowRange& rows, ByteRange bytes);

// Calls add(buffer, StridedCopy) for the copies that bring `bytes` of the data section to their buffers, and answers
// how many of them some buffer takes.
template <typename Add>
uint64_t CopiesOfRange(const ScatterIndex& index, ByteRange bytes, Add add) {
  uint64_t taken = 0;
  const auto end = index.row_ranges().end();
  for (auto rows = index.RowRangeAt(bytes.offset); rows != end && rows->offset < bytes.end(); ++rows) {
    for (const RowRangePart& part : PartsOf(*rows, bytes)) {
      for (const ColumnRange& columns : index.column_ranges(*rows)) {
        const uint64_t from = std::max(columns.begin, part.from);
        const uint64_t to = std::min(columns.end, part.to);
        if (from >= to || columns.targets == 0) continue;
        taken += part.rows * (to - from);
        const uint64_t source = rows->offset + part.row * rows->pitch + from;
        for (const TargetOffset& target : index.targets(columns)) {
          const bool one = part.rows == 1;
          add(target.buffer, layout::StridedCopy{.source_offset = source,
                                                 .target_offset = source + target.shift + part.row * target.row_shift,
                                                 .rows = part.rows,
                                                 .row_bytes = to - from,
                                                 .source_pitch = one ? 0 : rows->pitch,
                                                 .target_pitch = one ? 0 : rows->pitch + target.row_shift});
        }
      }
    }
  }
  return taken;
}

}  // namespace lockstep::placement

#include "raas_receiver/placement/writes/scatter_index.h"

#include <algorithm>

namespace lockstep::placement {

ScatterIndex::ScatterIndex(const PlacementPlan& plan, const std::vector<bool>& wanted) : plan_(plan) {
  first_columns_.reserve(plan.row_ranges().size() + 1);
  for (const RowRange& rows : plan.row_ranges()) Add(rows, wanted);
  first_columns_.push_back(column_ranges_.size());
}

std::span<const ColumnRange> ScatterIndex::column_ranges(const RowRange& rows) const {
  const auto index = static_cast<size_t>(&rows - plan_.row_ranges().data());
  return std::span(column_ranges_).subspan(first_columns_[index], first_columns_[index + 1] - first_columns_[index]);
}

void ScatterIndex::Add(const RowRange& rows, const std::vector<bool>& wanted) {
  first_columns_.push_back(column_ranges_.size());
  std::vector<const ColumnCopy*> copies;
  std::vector<uint64_t> cuts{0, rows.pitch};
  for (const ColumnCopy& copy : plan_.column_copies(rows)) {
    if (!wanted[copy.buffer]) continue;
    copies.push_back(&copy);
    cuts.push_back(copy.column);
    cuts.push_back(copy.column + copy.bytes);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<const ColumnCopy*> here;
  size_t next = 0;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::erase_if(here, [&](const ColumnCopy* copy) { return copy->column + copy->bytes <= cuts[i]; });
    for (; next < copies.size() && copies[next]->column <= cuts[i]; ++next) here.push_back(copies[next]);
    column_ranges_.push_back(
        {cuts[i], cuts[i + 1], static_cast<uint32_t>(targets_.size()), static_cast<uint32_t>(here.size())});
    for (const ColumnCopy* copy : here) {
      targets_.push_back({.buffer = copy->buffer,
                          .shift = copy->target_offset - copy->column - rows.offset,
                          .row_shift = copy->target_pitch - rows.pitch});
    }
  }
}

ByteRun ScatterCursor::At(uint64_t offset) {
  if (offset >= passed_) EnterRows(offset);
  if (rows_ == rows_end_) return {.end = UINT64_MAX};
  if (offset < rows_->offset) return {.end = rows_->offset};
  if (offset >= row_end_) EnterRow(offset);
  const uint64_t column = offset - row_begin_;
  if (column >= columns_[column_].end) {
    const auto after = [](uint64_t at, const ColumnRange& columns) { return at < columns.end; };
    column_ = static_cast<size_t>(
        std::upper_bound(columns_.begin() + static_cast<ptrdiff_t>(column_), columns_.end(), column, after) -
        columns_.begin());
  }
  const ColumnRange& columns = columns_[column_];
  return {.end = row_begin_ + columns.end, .row = row_, .targets = index_.targets(columns)};
}

void ScatterCursor::EnterRows(uint64_t offset) {
  rows_ = index_.RowRangeAt(offset);
  if (rows_ == rows_end_) {
    passed_ = UINT64_MAX;
    return;
  }
  passed_ = rows_->end();
  columns_ = index_.column_ranges(*rows_);
  column_ = 0;
  row_ = 0;
  row_begin_ = rows_->offset;
  row_end_ = rows_->offset + rows_->pitch;
}

void ScatterCursor::EnterRow(uint64_t offset) {
  // Mostly the next one: only a jump is worth a division.
  const uint64_t rows = offset - row_end_ < rows_->pitch ? 1 : (offset - row_begin_) / rows_->pitch;
  row_ += rows;
  row_begin_ += rows * rows_->pitch;
  row_end_ = row_begin_ + rows_->pitch;
  column_ = 0;
}

std::vector<RowRangePart> PartsOf(const RowRange& rows, ByteRange bytes) {
  const uint64_t from = std::max(rows.offset, bytes.offset) - rows.offset;
  const uint64_t to = std::min(rows.end(), bytes.offset + bytes.bytes) - rows.offset;
  const uint64_t first = from / rows.pitch;
  const uint64_t last = (to - 1) / rows.pitch;
  const uint64_t first_column = from - first * rows.pitch;
  const uint64_t last_column = to - last * rows.pitch;
  if (first == last) return {{first, 1, first_column, last_column}};
  std::vector<RowRangePart> parts;
  const uint64_t whole_from = first_column == 0 ? first : first + 1;
  const uint64_t whole_to = last_column == rows.pitch ? last + 1 : last;
  if (whole_from != first) parts.push_back({first, 1, first_column, rows.pitch});
  if (whole_from < whole_to) parts.push_back({whole_from, whole_to - whole_from, 0, rows.pitch});
  if (whole_to == last) parts.push_back({last, 1, 0, last_column});
  return parts;
}

}  // namespace lockstep::placement

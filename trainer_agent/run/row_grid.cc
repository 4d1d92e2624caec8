#include "trainer_agent/run/row_grid.h"

#include <iterator>

namespace lockstep::run {

RowGrid::RowGrid(ByteRange region, uint64_t pitch)
    : region_(region), pitch_(pitch), rows_((region.bytes - 1) / pitch + 1), bands_{{0, IntervalSet()}} {}

std::array<RowGrid::Rectangle, 3> RowGrid::Rectangles(const StridedRange& range) const {
  const uint64_t row = (range.offset - region_.offset) / pitch_;
  const uint64_t column = (range.offset - region_.offset) % pitch_;
  const uint64_t end = column + range.row_bytes;
  if (end <= pitch_) return {{{row, row + range.rows, column, end}}};
  if (range.rows > 1) {  // not more than a pitch: it wraps once
    return {{{row, row + range.rows, column, pitch_}, {row + 1, row + 1 + range.rows, 0, end - pitch_}}};
  }
  const uint64_t last_row = row + end / pitch_;
  std::array<Rectangle, 3> parts{{{row, row + 1, column, pitch_}, {row + 1, last_row, 0, pitch_}}};
  if (end % pitch_ > 0) parts[2] = {last_row, last_row + 1, 0, end % pitch_};
  return parts;
}

bool RowGrid::Overlaps(const StridedRange& range) const {
  for (const Rectangle& rectangle : Rectangles(range)) {
    if (rectangle.first_row < rectangle.end_row && Overlaps(rectangle)) return true;
  }
  return false;
}

bool RowGrid::Overlaps(const Rectangle& rectangle) const {
  for (auto band = std::prev(bands_.upper_bound(rectangle.first_row));
       band != bands_.end() && band->first < rectangle.end_row; ++band) {
    if (band->second.Overlaps(rectangle.first_column, rectangle.end_column)) return true;
  }
  return false;
}

void RowGrid::Insert(const StridedRange& range) {
  for (const Rectangle& rectangle : Rectangles(range)) {
    if (rectangle.first_row < rectangle.end_row) Insert(rectangle);
  }
  reported_bytes_ += range.bytes();
}

void RowGrid::Insert(const Rectangle& rectangle) {
  SplitAt(rectangle.first_row);
  SplitAt(rectangle.end_row);
  for (auto band = bands_.find(rectangle.first_row); band != bands_.end() && band->first < rectangle.end_row; ++band) {
    pieces_ -= band->second.size();
    band->second.Insert(rectangle.first_column, rectangle.end_column);
    pieces_ += band->second.size();
  }
  MergeEqual(rectangle.first_row, rectangle.end_row);
}

void RowGrid::SplitAt(uint64_t row) {
  if (row >= rows_) return;
  const auto after = bands_.upper_bound(row);
  const auto band = std::prev(after);
  if (band->first == row) return;
  bands_.emplace_hint(after, row, band->second);
  pieces_ += 1 + band->second.size();
}

void RowGrid::MergeEqual(uint64_t first_row, uint64_t last_row) {
  auto band = bands_.find(first_row);
  if (band != bands_.begin()) --band;
  while (true) {
    const auto next = std::next(band);
    if (next == bands_.end() || next->first > last_row) return;
    if (next->second == band->second) {
      pieces_ -= 1 + next->second.size();
      bands_.erase(next);
    } else {
      band = next;
    }
  }
}

uint64_t RowGrid::FirstMissing() const {
  for (const auto& [row, columns] : bands_) {
    const uint64_t column = columns.FirstMissing();
    if (column < pitch_) return region_.offset + row * pitch_ + column;
  }
  return region_.end();
}

}  // namespace lockstep::run

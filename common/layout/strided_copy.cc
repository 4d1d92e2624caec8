#include "common/layout/strided_copy.h"

#include <algorithm>
#include <utility>

namespace lockstep::layout {
namespace {

// A loop of a copy; steps are in bytes.
struct Loop {
  uint64_t count = 1;
  uint64_t source_step = 0;
  uint64_t target_step = 0;
};

// The loops over `piece`, outermost first, in the order of the target's memory, as few as there can be.
std::vector<Loop> Loops(const Piece& piece, const TensorView& source, const TensorView& target) {
  std::vector<Loop> loops;
  for (size_t k = 0; k < piece.size.size(); ++k) {
    if (piece.size[k] == 1) continue;
    loops.push_back(
        {piece.size[k], source.strides[k] * source.element_bytes, target.strides[k] * target.element_bytes});
  }
  std::stable_sort(loops.begin(), loops.end(),
                   [](const Loop& a, const Loop& b) { return a.target_step > b.target_step; });
  std::vector<Loop> merged;
  for (const Loop& loop : loops) {
    if (!merged.empty() && merged.back().source_step == loop.count * loop.source_step &&
        merged.back().target_step == loop.count * loop.target_step) {
      merged.back() = {merged.back().count * loop.count, loop.source_step, loop.target_step};
    } else {
      merged.push_back(loop);
    }
  }
  return merged;
}

uint64_t Offset(const TensorView& view, const Extents& start) {
  uint64_t elements = 0;
  for (size_t k = 0; k < start.size(); ++k) elements += start[k] * view.strides[k];
  return view.offset + elements * view.element_bytes;
}

// Appends `copy` once for each index of `loops`, outermost first.
void AppendLooped(std::vector<Loop> loops, StridedCopy copy, std::vector<StridedCopy>& copies) {
  if (loops.empty()) {
    copies.push_back(copy);
    return;
  }
  const Loop outer = loops.front();
  loops.erase(loops.begin());
  for (uint64_t i = 0; i < outer.count; ++i) {
    AppendLooped(loops, copy, copies);
    copy.source_offset += outer.source_step;
    copy.target_offset += outer.target_step;
  }
}

bool IsRun(const Loop& loop, const TensorView& source, const TensorView& target) {
  return loop.source_step == source.element_bytes && loop.target_step == target.element_bytes;
}

void AppendPiece(const Piece& piece, const TensorView& source, const TensorView& target,
                 std::vector<StridedCopy>& copies) {
  if (ElementCount(piece.size) == 0) return;
  std::vector<Loop> loops = Loops(piece, source, target);
  StridedCopy copy{.source_offset = Offset(source, piece.source),
                   .target_offset = Offset(target, piece.target),
                   .row_bytes = target.element_bytes};
  if (!loops.empty() && IsRun(loops.back(), source, target)) {
    copy.row_bytes *= loops.back().count;
    loops.pop_back();
  }
  if (!loops.empty()) {
    copy.rows = loops.back().count;
    copy.source_pitch = loops.back().source_step;
    copy.target_pitch = loops.back().target_step;
    loops.pop_back();
  }
  AppendLooped(std::move(loops), copy, copies);
}

// Bytes of the source that `target_bytes` of target are made of.
uint64_t SourceBytes(uint64_t target_bytes, ElementBytes element) {
  return target_bytes / element.target * element.source;
}

// Each row of `b` continues where the same row of `a` ends: `a` becomes both.
bool Widen(StridedCopy& a, const StridedCopy& b, ElementBytes element) {
  if (a.rows != b.rows || a.source_pitch != b.source_pitch || a.target_pitch != b.target_pitch) return false;
  if (b.source_offset != a.source_offset + SourceBytes(a.row_bytes, element)) return false;
  if (b.target_offset != a.target_offset + a.row_bytes) return false;
  // One that takes the begin of the next row would have rows that overlap.
  if (a.rows > 1 && SourceBytes(a.row_bytes + b.row_bytes, element) > a.source_pitch) return false;
  a.row_bytes += b.row_bytes;
  if (a.rows > 1 && a.target_pitch == a.row_bytes && a.source_pitch == SourceBytes(a.row_bytes, element)) {
    a = {.source_offset = a.source_offset, .target_offset = a.target_offset, .row_bytes = a.rows * a.row_bytes};
  }
  return true;
}

// The rows of `b` come after those of `a`, with the same pitch: `a` becomes both.
bool Lengthen(StridedCopy& a, const StridedCopy& b, ElementBytes element) {
  if (a.row_bytes != b.row_bytes || b.source_offset < a.source_offset || b.target_offset < a.target_offset)
    return false;
  uint64_t source_pitch = a.source_pitch;
  uint64_t target_pitch = a.target_pitch;
  if (a.rows == 1) {
    source_pitch = b.source_offset - a.source_offset;
    target_pitch = b.target_offset - a.target_offset;
  }
  if (source_pitch < SourceBytes(a.row_bytes, element) || target_pitch < a.row_bytes) return false;
  if (b.source_offset != a.source_offset + a.rows * source_pitch) return false;
  if (b.target_offset != a.target_offset + a.rows * target_pitch) return false;
  if (b.rows > 1 && (b.source_pitch != source_pitch || b.target_pitch != target_pitch)) return false;
  a.rows += b.rows;
  a.source_pitch = source_pitch;
  a.target_pitch = target_pitch;
  return true;
}

// `rows` rows of `copy` from `row` on, of each the `bytes` from byte `from` on.
StridedCopy Part(const StridedCopy& copy, uint64_t row, uint64_t rows, uint64_t from, uint64_t bytes,
                 ElementBytes element) {
  return {.source_offset = copy.source_offset + row * copy.source_pitch + SourceBytes(from, element),
          .target_offset = copy.target_offset + row * copy.target_pitch + from,
          .rows = rows,
          .row_bytes = bytes,
          .source_pitch = rows == 1 ? 0 : copy.source_pitch,
          .target_pitch = rows == 1 ? 0 : copy.target_pitch};
}

}  // namespace

Extents ContiguousStrides(const Extents& shape) {
  Extents strides(shape.size());
  uint64_t stride = 1;
  for (size_t k = shape.size(); k-- > 0;) {
    strides[k] = stride;
    stride *= shape[k];
  }
  return strides;
}

TensorView TensorView::Contiguous(Extents shape, uint64_t element_bytes, uint64_t offset) {
  Extents strides = ContiguousStrides(shape);
  return {std::move(shape), std::move(strides), element_bytes, offset};
}

void AppendCopies(const Pieces& pieces, const TensorView& source, const TensorView& target,
                  std::vector<StridedCopy>& copies) {
  for (const Piece& piece : pieces) AppendPiece(piece, source, target, copies);
}

uint64_t CopyCount(const Piece& piece, const TensorView& source, const TensorView& target) {
  if (ElementCount(piece.size) == 0) return 0;
  std::vector<Loop> loops = Loops(piece, source, target);
  if (!loops.empty() && IsRun(loops.back(), source, target)) loops.pop_back();
  if (!loops.empty()) loops.pop_back();
  uint64_t count = 1;
  for (const Loop& loop : loops) count *= loop.count;
  return count;
}

void Coalesce(std::vector<StridedCopy>& copies, ElementBytes element) {
  std::vector<StridedCopy> merged;
  for (const StridedCopy& copy : copies) {
    if (merged.empty() || !(Widen(merged.back(), copy, element) || Lengthen(merged.back(), copy, element))) {
      merged.push_back(copy);
    }
  }
  copies = std::move(merged);
}

void AppendSplit(const StridedCopy& copy, uint64_t max_bytes, ElementBytes element, std::vector<StridedCopy>& parts) {
  if (copy.row_bytes <= max_bytes) {
    const uint64_t rows_at_once = copy.row_bytes == 0 ? copy.rows : max_bytes / copy.row_bytes;
    for (uint64_t row = 0; row < copy.rows; row += rows_at_once) {
      const uint64_t rows = std::min(rows_at_once, copy.rows - row);
      parts.push_back(Part(copy, row, rows, 0, copy.row_bytes, element));
    }
    return;
  }
  const uint64_t bytes_at_once = max_bytes / element.target * element.target;
  for (uint64_t row = 0; row < copy.rows; ++row) {
    for (uint64_t from = 0; from < copy.row_bytes; from += bytes_at_once) {
      const uint64_t bytes = std::min(bytes_at_once, copy.row_bytes - from);
      parts.push_back(Part(copy, row, 1, from, bytes, element));
    }
  }
}

void AppendClipped(const StridedCopy& copy, uint64_t begin, uint64_t end, ElementBytes element,
                   std::vector<StridedCopy>& parts) {
  // How many rows begin before `at`.
  const auto rows_before = [&copy](uint64_t at) -> uint64_t {
    if (at <= copy.target_offset) return 0;
    if (copy.rows == 1) return 1;
    return std::min(copy.rows, (at - copy.target_offset - 1) / copy.target_pitch + 1);
  };
  const uint64_t first_end = copy.target_offset + copy.row_bytes;
  uint64_t row =
      begin < first_end ? 0 : rows_before(begin - copy.row_bytes + 1);  // rows that end at `begin` are before
  const uint64_t rows_end = rows_before(end);
  const auto append_row = [&](uint64_t at) {
    const uint64_t start = copy.target_offset + at * copy.target_pitch;
    const uint64_t from = std::max(begin, start) - start;
    parts.push_back(Part(copy, at, 1, from, std::min(end - start, copy.row_bytes) - from, element));
  };
  if (row < rows_end && copy.target_offset + row * copy.target_pitch < begin) append_row(row++);
  if (row == rows_end) return;
  const bool last_is_cut = copy.target_offset + (rows_end - 1) * copy.target_pitch + copy.row_bytes > end;
  const uint64_t whole = rows_end - row - (last_is_cut ? 1 : 0);
  if (whole > 0) parts.push_back(Part(copy, row, whole, 0, copy.row_bytes, element));
  if (last_is_cut) append_row(rows_end - 1);
}

StridedRange TargetRange(const StridedCopy& copy) {
  return {.offset = copy.target_offset, .row_bytes = copy.row_bytes, .rows = copy.rows, .pitch = copy.target_pitch};
}

}  // namespace lockstep::layout

#include "trainer_agent/run/coverage.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::run {
namespace {

// One plain range where that means the same.
StridedRange Simplest(StridedRange range) {
  if (range.rows > 1 && range.row_bytes < range.pitch) return range;
  return StridedRange::Plain({range.offset, range.bytes()});
}

// Of the bytes of `range`, those before `offset`.
uint64_t BytesBefore(const StridedRange& range, uint64_t offset) {
  if (offset <= range.offset) return 0;
  const uint64_t span = offset - range.offset;
  if (range.rows == 1) return std::min(span, range.row_bytes);
  const uint64_t whole_rows = span / range.pitch;
  if (whole_rows >= range.rows) return range.bytes();
  return whole_rows * range.row_bytes + std::min(span % range.pitch, range.row_bytes);
}

uint64_t End(const StridedRange& range) {
  return range.offset + (range.rows - 1) * range.pitch + range.row_bytes;
}

std::string Describe(const StridedRange& range) {
  if (range.rows == 1) return Cat("bytes ", range.offset, " + ", range.row_bytes);
  return Cat(range.rows, " rows of ", range.row_bytes, " bytes from ", range.offset, " on, ", range.pitch, " apart");
}

}  // namespace

Coverage::Coverage(const model::ModelLayout& layout)
    : layout_(layout),
      block_missing_(layout.block_count()),
      block_changed_(layout.block_count()),
      missing_bytes_(layout.data_bytes()) {
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    block_missing_[block] = static_cast<uint32_t>(layout.block_range(block).bytes);
  }
}

Status Coverage::Add(const StridedRange& reported, Content content, CompletedBlocks& completed) {
  LS_RETURN_IF_ERROR(CheckRange(reported));
  if (reported.row_bytes == 0) return OkStatus();
  const StridedRange range = Simplest(reported);
  parts_.clear();
  LS_RETURN_IF_ERROR(TakeApart(range));
  LS_RETURN_IF_ERROR(CheckNew(range));
  LS_RETURN_IF_ERROR(InsertParts());
  missing_bytes_ -= range.bytes();
  CountBlocks(range, content, completed);
  return OkStatus();
}

Status Coverage::CheckRange(const StridedRange& range) const {
  if (range.rows == 0) return {ErrorCode::kBadData, Cat("a range at ", range.offset, " has no rows")};
  if (range.row_bytes == 0) return OkStatus();
  if (range.rows > 1 && range.pitch < range.row_bytes) {
    return {ErrorCode::kBadData, Cat(Describe(range), ": the rows overlap each other")};
  }
  const uint64_t data_bytes = layout_.data_bytes();
  if (range.offset < data_bytes && range.row_bytes <= data_bytes - range.offset) {
    const uint64_t room = data_bytes - range.offset - range.row_bytes;
    if (range.rows == 1 || range.rows - 1 <= room / range.pitch) return OkStatus();
  }
  return {ErrorCode::kBadData, Cat(Describe(range), " are outside the data section of ", data_bytes, " bytes")};
}

Status Coverage::TakeApart(const StridedRange& range) {
  if (range.rows == 1) {
    TakeApartPlain({range.offset, range.row_bytes});
    return OkStatus();
  }
  const std::vector<StridedRange> pieces = CutAtTensors(range);
  // All grids first: a plain piece may reach into a tensor that gets its grid from a later one.
  for (const StridedRange& piece : pieces) {
    if (piece.rows > 1) LS_RETURN_IF_ERROR(MakeGrid(piece));
  }
  for (const StridedRange& piece : pieces) {
    if (piece.rows == 1) {
      TakeApartPlain({piece.offset, piece.row_bytes});
    } else {
      LS_RETURN_IF_ERROR(TakeApartRows(piece));
    }
  }
  return OkStatus();
}

std::vector<StridedRange> Coverage::CutAtTensors(const StridedRange& range) const {
  std::vector<StridedRange> pieces;
  for (uint64_t row = 0; row < range.rows; row += pieces.back().rows) {
    const uint64_t start = range.offset + row * range.pitch;
    const uint64_t room = TensorRange(start).end() - start;
    const uint64_t fitting = room < range.row_bytes ? 0 : (room - range.row_bytes) / range.pitch + 1;
    pieces.push_back({start, range.row_bytes, std::clamp<uint64_t>(fitting, 1, range.rows - row), range.pitch});
  }
  return pieces;
}

ByteRange Coverage::TensorRange(uint64_t offset) const {
  const size_t tensor = layout_.TensorAt(offset);
  return {layout_.tensors()[tensor].offset, layout_.tensor_bytes(tensor)};
}

Status Coverage::MakeGrid(const StridedRange& rows) {
  const ByteRange region = TensorRange(rows.offset);
  if (grids_.count(region.offset) > 0) return OkStatus();
  if (plain_.Contains(region.offset, region.end())) return ReportedTwice(rows, rows.offset);
  RowGrid& grid = grids_.emplace(region.offset, RowGrid(region, rows.pitch)).first->second;
  for (const auto& [begin, end] : plain_.Cut(region.offset, region.end())) {
    grid.Insert(StridedRange::Plain({begin, end - begin}));
  }
  grid_pieces_ += grid.pieces();
  return OkStatus();
}

void Coverage::TakeApartPlain(ByteRange range) {
  auto grid = grids_.upper_bound(range.offset);
  if (grid != grids_.begin() && std::prev(grid)->second.region().end() > range.offset) --grid;
  for (uint64_t at = range.offset; at < range.end();) {
    const bool inside = grid != grids_.end() && grid->first <= at;
    const uint64_t limit = grid == grids_.end() ? range.end() : inside ? grid->second.region().end() : grid->first;
    const uint64_t stop = std::min(range.end(), limit);
    parts_.push_back({inside ? &grid->second : nullptr, StridedRange::Plain({at, stop - at})});
    if (inside) ++grid;
    at = stop;
  }
}

Status Coverage::TakeApartRows(const StridedRange& rows) {
  const ByteRange region = TensorRange(rows.offset);
  RowGrid& grid = grids_.at(region.offset);
  if (grid.pitch() == rows.pitch) {
    parts_.push_back({&grid, rows});
    return OkStatus();
  }
  if (parts_.size() + rows.rows > kMaxRowsApart) {
    return {
        ErrorCode::kResourceExhausted,
        Cat(Describe(rows), " (tensor \"", TensorName(rows.offset), "\") follow ranges whose rows are ", grid.pitch(),
            " apart, and are too many to be kept one by one; report a tensor's ranges with one pitch")};
  }
  for (uint64_t row = 0; row < rows.rows; ++row) {
    parts_.push_back({&grid, StridedRange::Plain({rows.offset + row * rows.pitch, rows.row_bytes})});
  }
  return OkStatus();
}

const std::string& Coverage::TensorName(uint64_t offset) const {
  return layout_.tensors()[layout_.TensorAt(offset)].name;
}

Status Coverage::ReportedTwice(const StridedRange& range, uint64_t offset) const {
  return {ErrorCode::kBadData,
          Cat(Describe(range), " (tensor \"", TensorName(offset), "\") were reported twice: each byte has one writer")};
}

Status Coverage::CheckNew(const StridedRange& range) const {
  for (const Part& part : parts_) {
    const bool overlaps =
        part.grid != nullptr ? part.grid->Overlaps(part.range) : plain_.Overlaps(part.range.offset, End(part.range));
    if (overlaps) return ReportedTwice(range, part.range.offset);
  }
  return OkStatus();
}

Status Coverage::InsertParts() {
  for (const Part& part : parts_) {
    if (pieces() >= kMaxCoveragePieces) {
      return {ErrorCode::kResourceExhausted,
              Cat("the ranges reported are in more than ", kMaxCoveragePieces, " pieces; report larger ones")};
    }
    if (part.grid != nullptr) {
      InsertInGrid(*part.grid, part.range);
    } else {
      plain_.Insert(part.range.offset, End(part.range));
    }
  }
  return OkStatus();
}

void Coverage::InsertInGrid(RowGrid& grid, const StridedRange& range) {
  grid_pieces_ -= grid.pieces();
  grid.Insert(range);
  if (!grid.complete()) {
    grid_pieces_ += grid.pieces();
    return;
  }
  // No later part is in this grid: it would overlap.
  const ByteRange region = grid.region();
  grids_.erase(region.offset);
  plain_.Insert(region.offset, region.end());
}

void Coverage::CountBlocks(const StridedRange& range, Content content, CompletedBlocks& completed) {
  if (range.rows > 1 && range.pitch >= layout_.block_bytes()) {  // else no block between its first and last is skipped
    for (uint64_t row = 0; row < range.rows; ++row) {
      CountBlocks(StridedRange::Plain({range.offset + row * range.pitch, range.row_bytes}), content, completed);
    }
    return;
  }
  uint64_t before = 0;
  for (auto block = static_cast<BlockIndex>(range.offset / layout_.block_bytes()); before < range.bytes(); ++block) {
    const uint64_t until = BytesBefore(range, layout_.block_range(block).end());
    if (content == Content::kNew) block_changed_[block] = true;
    block_missing_[block] -= static_cast<uint32_t>(until - before);
    if (block_missing_[block] == 0) {
      (block_changed_[block] ? completed.changed : completed.unchanged).push_back(block);
    }
    before = until;
  }
}

std::optional<uint64_t> Coverage::FirstMissing() const {
  if (complete()) return std::nullopt;
  // What is not plain may lie in a grid, which then starts there and has a missing byte, or it would be plain.
  const uint64_t offset = plain_.FirstMissing();
  const auto grid = grids_.find(offset);
  return grid == grids_.end() ? offset : grid->second.FirstMissing();
}

}  // namespace lockstep::run

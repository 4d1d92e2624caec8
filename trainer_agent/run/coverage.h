// Coverage: which bytes of a version its ranks have reported as final, and which blocks that completes.
//
// Exact to the byte, at a cost that follows the ranges reported and the blocks they touch, not their rows. Invariant: a
// byte reported is kept in one place, in the grid of its tensor (row_grid.h) when that has one, else among the plain
// ranges. A tensor gets a grid with the first range of several rows that lies in it, and loses it when its last byte is
// reported. What fits no grid (rows across the end of a tensor, a second pitch in one tensor) is taken apart into plain
// ranges.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/model/layout.h"
#include "trainer_agent/run/interval_set.h"
#include "trainer_agent/run/row_grid.h"

namespace lockstep::run {

// Ranges kept at the same time, of some 64 bytes of memory each.
inline constexpr size_t kMaxCoveragePieces = size_t{1} << 24;
// Parts of one range, when rows of it must be taken apart.
inline constexpr uint64_t kMaxRowsApart = uint64_t{1} << 20;

// How a rank reports bytes as final.
enum class Content : uint8_t {
  kNew,        // the bytes may be anything
  kUnchanged,  // the bytes equal those of the other slot, which holds the version before
};

struct CompletedBlocks {
  std::vector<BlockIndex> changed;    // with a byte reported as new
  std::vector<BlockIndex> unchanged;  // every byte was reported as unchanged
};

// Not thread-safe.
class Coverage {
 public:
  // REQUIRES the layout to outlive this.
  explicit Coverage(const model::ModelLayout& layout);

  // Adds `range` and appends the blocks that it completed to `completed`. A range without bytes is nothing.
  //   kBadData: no rows, rows that overlap each other, bytes outside the data section, or a byte that was reported
  //   before
  //     (naming the tensor); nothing is added then.
  //   kResourceExhausted: over one of the limits above; part of it may be added, so abort the version.
  Status Add(const StridedRange& range, Content content, CompletedBlocks& completed);

  bool complete() const { return missing_bytes_ == 0; }
  uint64_t missing_bytes() const { return missing_bytes_; }
  // Offset of the first byte that no rank reported; no value when complete.
  std::optional<uint64_t> FirstMissing() const;
  size_t pieces() const { return plain_.size() + grid_pieces_; }  // ranges kept: what this costs in memory

 private:
  // A piece of a reported range: either lies in one grid, or is a plain range that lies in none.
  struct Part {
    RowGrid* grid = nullptr;
    StridedRange range;
  };

  Status CheckRange(const StridedRange& range) const;
  // Fills parts_ with what `range` is made of.
  Status TakeApart(const StridedRange& range);
  void TakeApartPlain(ByteRange range);
  Status TakeApartRows(const StridedRange& rows);
  // Pieces that lie in one tensor each, or have one row.
  std::vector<StridedRange> CutAtTensors(const StridedRange& range) const;
  ByteRange TensorRange(uint64_t offset) const;
  const std::string& TensorName(uint64_t offset) const;
  Status MakeGrid(const StridedRange& rows);
  Status CheckNew(const StridedRange& range) const;
  Status ReportedTwice(const StridedRange& range, uint64_t offset) const;
  Status InsertParts();
  void InsertInGrid(RowGrid& grid, const StridedRange& range);
  void CountBlocks(const StridedRange& range, Content content, CompletedBlocks& completed);

  const model::ModelLayout& layout_;
  IntervalSet plain_;
  std::map<uint64_t, RowGrid> grids_;  // by the tensor's offset
  size_t grid_pieces_ = 0;
  std::vector<Part> parts_;              // of the range being added
  std::vector<uint32_t> block_missing_;  // bytes of each block
  std::vector<bool> block_changed_;      // some byte was reported as new
  uint64_t missing_bytes_;
};

}  // namespace lockstep::run
